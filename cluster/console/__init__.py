"""The console: a page in the browser that shows the cluster through the public API."""
