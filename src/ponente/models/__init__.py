"""Model families: one file each, a config and modules of arrays; parameters name their axes."""
