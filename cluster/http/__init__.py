"""From bytes to handlers and back: connections, requests, responses, routes, the OpenAPI document."""
