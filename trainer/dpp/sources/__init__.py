"""Data sources: modules with `prepare(spec, root, request)`, named by the `data.prepare` of a spec."""
