"""`headrace cluster status | why | logs`: the pods of a release, and what each waits for."""
