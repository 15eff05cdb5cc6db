#!/usr/bin/python3
"""The order of the spool's system calls, which killing cannot show: what must be on the disk before what.

    test_spool_order.py DRIVER

Runs tests/fault/spool_driver under strace with several seeds and holds every rename against the calls around it
(docs/SPOOL.md). Skips (77) where strace is missing or may not trace.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

CALLS = "fsync,renameat,renameat2,linkat,unlinkat,mkdirat,write"
SEEDS = range(1, 13)


def unquote(text):
    return re.sub(r"\\(.)", r"\1", text)


def parse(lines, root):
    """[(call, path, path2)] with paths relative to the root; calls that failed are left out."""
    calls = []
    for line in lines:
        line = re.sub(r"^\d+ +", "", line)
        match = re.match(r"(\w+)\((.*)\) += (-?\d+)", line)
        if not match or int(match[3]) < 0:
            continue
        name, arguments = match[1], match[2]
        fds = re.findall(r"\d+<([^>]*)>", arguments)
        names = [unquote(text) for text in re.findall(r'"((?:[^"\\]|\\.)*)"', arguments)]
        if name in ("fsync", "write"):
            paths = fds[:1]
        else:
            paths = [os.path.join(fd, text) for fd, text in zip(fds, names)]
        if not paths or not paths[0].startswith(root):
            continue
        paths = [os.path.relpath(path, root) for path in paths]
        calls.append((name, *paths, *[None] * (2 - len(paths))))
    return calls


class Order:
    def __init__(self, calls):
        self.calls = calls
        self.seen = {"manifest": 0, "claim": 0, "publish": 0, "done": 0, "failed": 0, "returned": 0}

    def synced(self, path, start, end):
        """Whether path is synced in calls[start:end]."""
        return any(call[0] == "fsync" and call[1] == path for call in self.calls[start:end])

    def last(self, test, end):
        """The last call before `end` that the test holds for, or -1."""
        for i in range(end - 1, -1, -1):
            if test(*self.calls[i]):
                return i
        return -1

    def next(self, test, start):
        for i in range(start, len(self.calls)):
            if test(*self.calls[i]):
                return i
        return len(self.calls)

    def must(self, true, i, what):
        if not true:
            around = "\n".join(("=> " if k == i else "   ") + str(self.calls[k])
                               for k in range(max(0, i - 12), min(len(self.calls), i + 12)))
            sys.exit(f"{what}\n{around}")

    def check(self):
        for i, (call, path, path2) in enumerate(self.calls):
            if call not in ("renameat", "renameat2"):
                continue
            job, from_job = os.path.dirname(path2), os.path.dirname(path)
            name = os.path.basename(path2)
            if ".probe" in path:
                continue
            if name in ("manifest.json", "reason.json") and job.startswith("work/"):
                self.temporary(i, path, job)
                self.seen["manifest"] += 1
            elif re.match(r"result\.\d+\.npz$", name) and job.startswith("work/"):
                self.temporary(i, path, job)  # the driver's own worker
            elif name == "video" and job.startswith("work/"):
                self.claim(i, path, job)
            elif path2.startswith("tracks/"):
                self.publish(i, path, path2)
            elif from_job.startswith("work/") and path.endswith("/video"):
                self.video_leaves(i, path2, from_job)

    def temporary(self, i, temporary, directory):
        """Written, synced, renamed, directory synced."""
        written = self.last(lambda c, p, q: c == "write" and p == temporary, i)
        self.must(written >= 0, i, "a file gets its name before anything is in it")
        self.must(self.synced(temporary, written, i), i, "a file gets its name before it is synced")
        after = self.next(lambda c, p, q: c.startswith("rename") or c == "unlinkat", i + 1)
        self.must(self.synced(directory, i, after), i, "the directory of a new manifest is not synced")

    def claim(self, i, source, job):
        made = self.last(lambda c, p, q: c == "mkdirat" and p == job, i)
        manifest = self.last(lambda c, p, q: c.startswith("rename") and q == job + "/manifest.json", i)
        self.must(made >= 0 and manifest > made, i, "a video is claimed before there is a manifest")
        self.must(self.synced(os.path.dirname(job), made, manifest), i, "the job's directory is not synced")
        self.must(self.synced(job, manifest, i), i, "the manifest's name is not synced before the claim")
        sidecar = self.last(lambda c, p, q: c.startswith("rename") and q and q.startswith(job + "/") and
                            os.path.basename(q) in ("queries.csv", "queries.json", "mask.png"), i)
        self.must(sidecar < 0 or self.synced(job, sidecar, i), i, "the video moves before its side-cars are safe")
        after = self.next(lambda c, p, q: c.startswith("rename"), i + 1)
        self.must(self.synced(job, i, after), i, "the claim is not synced")
        self.must(self.synced(os.path.dirname(source), i, after), i, "incoming/ is not synced after the claim")
        self.seen["claim"] += 1

    def publish(self, i, result, output):
        job = os.path.dirname(result)
        written = self.last(lambda c, p, q: c.startswith("rename") and q == result, i)
        manifest = self.last(lambda c, p, q: c.startswith("rename") and q == job + "/manifest.json", i)
        self.must(written >= 0 and manifest > written, i, "a result is published before that is decided")
        self.must(self.synced(result, written, manifest), i, "a result is published without a sync")
        self.must(self.synced(job, manifest, i), i, "a result is published before the decision is durable")
        leaves = self.next(lambda c, p, q: p == job + "/video", i + 1)
        self.must(self.synced(os.path.dirname(output), i, leaves), i,
                  "the input moves before the directory of its result is synced")
        self.seen["publish"] += 1

    def video_leaves(self, i, target, job):
        gone = self.next(lambda c, p, q: c == "unlinkat" and p == job + "/manifest.json", i)
        self.must(self.synced(os.path.dirname(target), i, gone), i,
                  "a manifest is removed before its input's new name is synced")
        for tree, key in (("done/", "done"), ("failed/", "failed"), ("incoming/", "returned")):
            self.seen[key] += target.startswith(tree)


def drop(root):
    os.makedirs(f"{root}/incoming/sub")
    for name, text in (("a.queries.csv", "0,1,1"), ("a.mp4", "good 1"), ("sub/b.mp4", "good 2"), ("c.mp4", "good 3"),
                       ("bad.mp4", "bad 4")):
        with open(f"{root}/incoming/{name}", "w", encoding="ascii") as file:
            file.write(text)


def trace(driver, seed):
    root = tempfile.mkdtemp(prefix="tt-order-")
    try:
        drop(root)
        log = f"{root}.strace"
        quiet = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}  # the leak check cannot run under strace
        done = subprocess.run(["strace", "-f", "-y", "-s", "4096", "-e", f"trace={CALLS}", "-o", log, driver, root, "1",
                               str(seed)], capture_output=True, check=False, env=quiet)
        if done.returncode and b"PTRACE" in done.stderr:
            print("skipped: strace may not trace here")
            sys.exit(77)
        if done.returncode:
            sys.exit(f"the driver failed: {done.stderr.decode(errors='replace')}")
        with open(log, encoding="utf-8", errors="surrogateescape") as file:
            lines = file.readlines()
        os.unlink(log)
        return parse(lines, root)
    finally:
        shutil.rmtree(root)


def main():
    if not shutil.which("strace"):
        print("skipped: strace is not installed")
        sys.exit(77)
    total = {}
    for seed in SEEDS:
        order = Order(trace(sys.argv[1], seed))
        order.check()
        for key, count in order.seen.items():
            total[key] = total.get(key, 0) + count
    print("renames in order:", ", ".join(f"{count} {key}" for key, count in total.items()))
    for key, count in total.items():
        if count == 0:
            sys.exit(f"no {key} was seen: the test tested nothing")


if __name__ == "__main__":
    main()
