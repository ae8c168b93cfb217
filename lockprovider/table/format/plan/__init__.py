"""The plans of services that rewrite rows, as Hudi keeps them: compaction and clustering. Codecs only, pure."""
