"""docs/OPERATIONS.md and the alerts: every query for the log runs on the log of a daemon to which all of it happened and
gives the answer that is known; every figure that a rule asks for is one that the daemon writes; and each rule fires when
it should, and only then (promtool's own unit tests)."""
import json
import re
import shutil
import subprocess

from daemon_tools import DaemonFolder, wait_for
from programs import SOURCE, main

DOCUMENT = SOURCE / "docs" / "OPERATIONS.md"
RULES = SOURCE / "packaging" / "prometheus" / "tiletrack.rules.yml"


def queries():
    """{question: arguments of jq}, from the document: a question's line, and the indented command below it."""
    found, question = {}, None
    for line in DOCUMENT.read_text().splitlines():
        command = re.fullmatch(r"    jq (-\S+) '(.*)' tiletrackd\.log", line)
        if command:
            found[question] = command.groups()
        elif line:
            question = line.split("? (")[0].rstrip("?")
    return found


class Questions(DaemonFolder):
    def setUp(self):
        super().setUp()
        if not shutil.which("jq"):
            self.skipTest("jq is not installed")

    def answers(self, daemon):
        got = {}
        for question, (flags, program) in queries().items():
            process = subprocess.run(["jq", flags, program, daemon.log_path], capture_output=True, text=True, timeout=60)
            self.assertEqual((process.returncode, process.stderr), (0, ""), question)
            got[question] = process.stdout
        return got

    def test_the_ten_usual_questions(self):
        daemon = self.daemon().start()
        daemon.drop("bear.mp4", "ms=5")
        daemon.event("job_done", file="bear.mp4")
        daemon.drop("broken.mp4", "bad")
        daemon.event("job_quarantined")
        daemon.drop("stubborn.mp4", "once:retry ms=1")
        daemon.event("job_done", file="stubborn.mp4")
        daemon.drop("deadly.mp4", "once:crash ms=1")
        daemon.event("job_done", file="deadly.mp4")
        daemon.config["jobs"]["max_attempts"] = 4
        daemon.write_config()
        daemon.process.send_signal(1)
        daemon.event("config_reloaded")
        daemon.kill()
        daemon.start()
        self.assertEqual(daemon.stop(), 0)
        got = self.answers(daemon)
        self.assertEqual(len(got), 11)

        def lines(start):
            found = [answer for question, answer in got.items() if question.startswith(start)]
            self.assertEqual(len(found), 1, start)
            return [line.split("\t") for line in found[0].splitlines()]

        story = lines("What happened to bear.mp4")
        self.assertEqual([line[1] for line in story], ["job_claimed", "job_started", "job_done"])
        self.assertEqual(len({line[2] for line in story}), 1)
        self.assertEqual(lines("Where are its tracks"), [["bear.tracks.npz"]])
        failed = lines("Which videos failed")
        self.assertEqual([line[1] for line in failed], ["broken.mp4"])
        self.assertTrue(failed[0][2])
        self.assertEqual({line[1] for line in lines("Which were tried again")}, {"stubborn.mp4", "deadly.mp4"})
        self.assertEqual(lines("Does it take videos now")[0][1], "daemon_stopped")
        self.assertIn("worker_exited", {line[1] for line in lines("What is wrong with a device")})
        times = json.loads(got["How long do jobs take? Median and slowest, seconds:"])
        self.assertEqual(times["jobs"], 3)
        self.assertLessEqual(times["median"], times["slowest"])
        self.assertEqual(len(lines("Is decoding, tracking or refining")[0]), 4)
        self.assertEqual(sum(int(line[1]) for line in lines("How many jobs an hour")), 3)
        starts = [e["ts"] for e in daemon.events("daemon_started", all_runs=True)]
        self.assertEqual(lines("Did it end by itself"), [[starts[1]]])
        self.assertEqual(json.loads(got["What did the last reload do"])["event"], "config_reloaded")

    def test_a_clean_life_shows_no_crash_and_a_wait_shows_its_cause(self):
        daemon = self.daemon(spool={"reserve_bytes": 2**50}).start()
        daemon.drop("waits.mp4")
        daemon.event("claiming_paused")
        got = self.answers(daemon)
        paused = [a for q, a in got.items() if q.startswith("Does it take videos now")][0].split("\t")
        self.assertEqual(paused[1], "claiming_paused")
        self.assertIn("free", paused[2])
        self.assertEqual([a for q, a in got.items() if q.startswith("Did it end by itself")], [""])


class Alerts(DaemonFolder):
    def setUp(self):
        super().setUp()
        if not shutil.which("promtool"):
            self.skipTest("promtool (Debian: prometheus) is not installed")

    def promtool(self, *arguments):
        process = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, timeout=120)
        self.assertEqual(process.returncode, 0, process.stdout + process.stderr)

    def test_rules_stand_and_ask_for_what_is_written(self):
        self.promtool("check", "rules", RULES)
        daemon = self.daemon().start()
        path = self.folder / "tiletrack.prom"
        wait_for(path.exists, "figures are written")
        written = path.read_text()
        rules = RULES.read_text()
        for name in set(re.findall(r"tiletrack_[a-z_]+", rules)):
            self.assertRegex(written, rf"(?m)^{name}[ {{]", name)
        for label, value in set(re.findall(r'(state|outcome)="([a-z_]+)"', rules)):
            self.assertIn(f'{label}="{value}"', written)

    def test_the_document_names_every_alert(self):
        names = re.findall(r"- alert: (\w+)", RULES.read_text())
        self.assertEqual(names, re.findall(r"(?m)^\| (Tiletrack\w+) \|", DOCUMENT.read_text()))

    def test_each_fires_when_it_should(self):
        """series: what is true; alert, minute: fires then. Nothing else fires at any of these minutes."""
        one = 'instance="n1",job="node"'
        file = f'node_textfile_mtime_seconds{{{one},file="/var/lib/tiletrack/tiletrack.prom"}}'
        cases = [
            ("TiletrackSilent", [(file, "0x30")], 5),
            ("TiletrackPaused", [(f"tiletrack_claiming_paused{{{one}}}", "1x30")], 10),
            ("TiletrackSpaceRunsOut", [(f"tiletrack_spool_free_bytes{{{one}}}", "1000000-2000x200")], 150),
            ("TiletrackDeviceOut", [(f'tiletrack_device_state{{{one},worker="gpu0",state="out_of_service"}}', "1x30")], 15),
            ("TiletrackWorkersDie", [(f'tiletrack_worker_exits_total{{{one},worker="gpu0"}}', "0+1x30")], 20),
            ("TiletrackVideosFail", [(f'tiletrack_jobs_total{{{one},outcome="failed"}}', "0+1x90"),
                                     (f'tiletrack_jobs_total{{{one},outcome="done"}}', "0+2x90")], 80),
            ("TiletrackQueueStands", [(f"tiletrack_queue_oldest_age_seconds{{{one}}}", "4000+60x60"),
                                      (f"tiletrack_jobs_claimed_total{{{one}}}", "7x60")], 50),
            ("TiletrackQueueGrows", [(f'tiletrack_queue_jobs{{{one},state="ready"}}', "150+1x200")], 150),
        ]  # fmt: skip
        well = [(file, "0+60x200"), (f"tiletrack_claiming_paused{{{one}}}", "0x200"),
                (f"tiletrack_spool_free_bytes{{{one}}}", "1000000000-1x200"),
                (f'tiletrack_device_state{{{one},worker="gpu0",state="out_of_service"}}', "0x200"),
                (f'tiletrack_worker_exits_total{{{one},worker="gpu0"}}', "3x200"),
                (f'tiletrack_jobs_total{{{one},outcome="failed"}}', "1x200"),
                (f'tiletrack_jobs_total{{{one},outcome="done"}}', "0+2x200"),
                (f"tiletrack_queue_oldest_age_seconds{{{one}}}", "30x200"), (f"tiletrack_jobs_claimed_total{{{one}}}", "0+2x200"),
                (f'tiletrack_queue_jobs{{{one},state="ready"}}', "150-1x140 10x60")]  # fmt: skip
        names = [name for name, _, _ in cases]
        labels = {"TiletrackSilent": {"file": "/var/lib/tiletrack/tiletrack.prom"},
                  "TiletrackDeviceOut": {"worker": "gpu0", "state": "out_of_service"}, "TiletrackWorkersDie": {"worker": "gpu0"},
                  "TiletrackQueueGrows": {"state": "ready"}}  # fmt: skip
        groups = []
        for name, series, minute in [*cases, (None, [], 100)]:
            merged = {**dict(well), **dict(series)}
            expected = [{"eval_time": f"{minute}m", "alertname": other, "exp_alerts": []} for other in names if other != name]
            groups.append({"interval": "1m", "input_series": [{"series": s, "values": v} for s, v in merged.items()],
                           "alert_rule_test": expected})  # fmt: skip
            if name:
                groups[-1]["fires"] = (name, minute, labels.get(name, {}))
        for group in groups:
            fires = group.pop("fires", None)
            self.check(group)
            if fires:
                name, minute, extra = fires
                severity = re.search(rf"alert: {name}\n.*?severity: (\w+)", RULES.read_text(), re.S)[1]
                # Annotations are part of what promtool compares, so it is asked whether the alert does NOT fire.
                group["alert_rule_test"] = [{"eval_time": f"{minute}m", "alertname": name, "exp_alerts": []}]
                process = self.check(group, fails=True)
                for word in (f'alertname="{name}"', f'severity="{severity}"', *(f'{k}="{v}"' for k, v in extra.items())):
                    self.assertIn(word, process)

    def check(self, group, fails=False):
        path = self.folder / "rules.test.yml"
        path.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [group]}))
        process = subprocess.run(["promtool", "test", "rules", path], capture_output=True, text=True, timeout=120)
        self.assertEqual(process.returncode != 0, fails, process.stdout + process.stderr + json.dumps(group))
        return process.stdout + process.stderr


if __name__ == "__main__":
    main()
