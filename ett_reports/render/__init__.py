"""A report as people and other programs see it: terminal, HTML, Perfetto trace, OpenMetrics."""
