"""What Headrace is made of: `python -m deployments.tools.supply_chain lock | audit | bill`."""
