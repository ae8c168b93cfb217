"""The service beside the pipelines, a process of its own: `python -m lockprovider.demo.compactor EVENTS_FD`.

It merges the log files of what is committed into new base files, again and again, while the pipelines write on: no
compaction conflicts with a writer. After the last pipeline it does so once more, so that no log file is left.
"""

from __future__ import annotations

import sys

from lockprovider.demo.lines import COMPACT
from lockprovider.demo.worker import POLL_S, Worker, told

LEAST_LOGS = 4  # while the pipelines write: fewer wait for more


def main(events_fd: int) -> None:
    """Compact until no pipeline is left, and then once more."""
    job, orders = told()
    worker = Worker(COMPACT, job, events_fd)
    worker.listen(orders)
    worker.open()
    done, is_last = 0, False
    while not is_last:
        worker.say("progress", done=done, total=done, doing="waits for log files")
        worker.alone.wait(POLL_S)
        is_last = worker.alone.is_set()
        logs = sum(one.log_files for one in worker.table.compact(dry_run=True))
        if logs >= (1 if is_last else LEAST_LOGS):
            worker.say("progress", done=done, total=done, doing=f"merges {logs} log files")
            done += len(worker.table.compact())
    worker.say("progress", done=done, total=done, doing="")
    worker.say("finished")


if __name__ == "__main__":
    main(int(sys.argv[1]))
