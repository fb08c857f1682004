"""The processes around the gateways and replicas: started, found, addressed, changed, stopped."""
