"""Who looks on: metrics, OpenTelemetry, the audit log, status, pictures and words.

May import: lease, record and below. Promised: nothing here changes a lock; what fails here fails nothing else.
"""
