"""The HTTP layer between bytes and handlers: requests, responses, routes, the OpenAPI document."""
