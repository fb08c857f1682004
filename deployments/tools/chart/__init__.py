"""The Helm chart's generated files, of the settings and of its own values."""
