"""gRPC over HTTP/1.1 with trailers, which HAProxy makes of HTTP/2: calls, answered as over HTTP."""
