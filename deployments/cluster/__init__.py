"""The processes around gateways and replicas: started, found, addressed, changed, stopped."""
