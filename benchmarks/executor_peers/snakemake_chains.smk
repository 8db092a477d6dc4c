# 100 chains of 10 steps in snakemake. Writes under ./out. With --force-use-threads a `run:` block stays in snakemake's
# own process, which is faster here than `shell:` or touch(), and far faster than a process for each.
from pathlib import Path


rule all:
    input:
        [f"out/chain-{chain}/step-{index}" for chain in range(100) for index in range(10)],


rule step:
    input:
        lambda w: f"out/chain-{w.chain}/step-{int(w.index) - 1}" if w.index != "0" else [],
    output:
        "out/chain-{chain}/step-{index}",
    run:
        Path(output[0]).write_text("done\n")
