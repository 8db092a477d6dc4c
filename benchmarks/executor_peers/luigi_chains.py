"""100 chains of 10 steps in luigi: local scheduler, one process, only errors logged. Writes under ./out."""

import sys

import luigi


class Step(luigi.Task):
    chain = luigi.IntParameter()
    index = luigi.IntParameter()

    def requires(self):
        return Step(chain=self.chain, index=self.index - 1) if self.index else []

    def output(self):
        return luigi.LocalTarget(f"out/chain-{self.chain}/step-{self.index}")

    def run(self):
        with self.output().open("w") as file:
            file.write("done\n")


if __name__ == "__main__":
    steps = [Step(chain=chain, index=index) for chain in range(100) for index in range(10)]
    sys.exit(not luigi.build(steps, local_scheduler=True, workers=1, log_level="ERROR"))
