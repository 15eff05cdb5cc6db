"""The rule for logrotate, carried out by logrotate itself on a daemon's log."""
import grp
import json
import os
import pwd
import shutil
import subprocess

from daemon_tools import DaemonFolder, wait_for
from programs import SOURCE, main

RULE = SOURCE / "packaging" / "logrotate" / "tiletrack"
LOGROTATE = shutil.which("logrotate") or "/usr/sbin/logrotate"


class Rotation(DaemonFolder):
    def test_no_line_is_lost(self):
        if not os.access(LOGROTATE, os.X_OK):
            self.skipTest("logrotate is not installed")
        logs = self.folder / "logs"
        logs.mkdir()
        log = logs / "tiletrackd.log"
        daemon = self.daemon(log={"file": str(log)}).start(ready=False)
        wait_for(lambda: log.exists() and "device_ready" in log.read_text(), "the log file is used")
        me = f"{pwd.getpwuid(os.getuid()).pw_name} {grp.getgrgid(os.getgid()).gr_name}"
        rule = self.folder / "rule"
        rule.write_text(RULE.read_text().replace("/var/log/tiletrack", str(logs)).replace("tiletrack tiletrack", me).
                        replace("systemctl kill --kill-who=main --signal=USR1 tiletrackd.service",
                                f"kill -USR1 {daemon.process.pid}"))
        rule.chmod(0o644)
        for turn in range(3):
            daemon.drop(f"v{turn}.mp4")
            wait_for(lambda: f"v{turn}.mp4" in log.read_text() and "job_done" in log.read_text(), "a job is done")
            done = subprocess.run([LOGROTATE, "--force", "--state", self.folder / "state", rule], capture_output=True,
                                  text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            wait_for(lambda: log.exists() and log.stat().st_mode & 0o777 == 0o640, "a new file")
        daemon.drop("last.mp4")
        wait_for(lambda: "job_done" in log.read_text(), "lines go into the new file")
        self.assertEqual(daemon.stop(), 0)
        lines = subprocess.run(f"zcat -f {logs}/*", shell=True, capture_output=True, text=True, check=True).stdout
        events = [json.loads(line) for line in lines.splitlines()]
        self.assertEqual(sorted(e["file"] for e in events if e["event"] == "job_done"),
                         ["last.mp4", "v0.mp4", "v1.mp4", "v2.mp4"])
        self.assertEqual(sorted(p.name for p in logs.iterdir()),
                         ["tiletrackd.log", "tiletrackd.log.1", "tiletrackd.log.2.gz", "tiletrackd.log.3.gz"])


if __name__ == "__main__":
    main()
