"""The nouns on disk: places, volumes, the numbered log, document shards, records."""
