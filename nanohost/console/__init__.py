"""The admin console: its looks and its safety, who may do what, the dashboard, and figures for Prometheus."""
