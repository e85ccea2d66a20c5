"""Recording a command: what starts it, what starts tracing inside it, and what joins the shards into one trace.

A traced program imports `boot` from here and nothing else, so nothing is imported here.
"""
