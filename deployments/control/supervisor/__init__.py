"""The processes of a server on one machine: started, watched, ended."""
