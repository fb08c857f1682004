"""`headrace kube status | why | logs`: lists a Helm release's pods and says why a pod waits."""
