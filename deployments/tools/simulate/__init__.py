"""`headrace simulate`: a scenario and a settings file, run on virtual time; part of the command
line, which alone may know the load tests' formats."""
