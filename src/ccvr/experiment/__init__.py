"""The only place that joins stages: spec, presets, engine, pipeline, load."""
