"""HAProxy in front of gateways: its template's changes, certificate and stand-in."""
