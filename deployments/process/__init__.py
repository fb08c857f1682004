"""What acts and every process needs: logs, audit, heartbeats, stores, directories."""
