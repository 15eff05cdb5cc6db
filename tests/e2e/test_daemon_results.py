"""What tiletrackd commits: the formats of a job's results, and the names that they get."""
import json

from daemon_tools import DaemonFolder, wait_for
from programs import main


class Results(DaemonFolder):
    def test_every_format_is_committed(self):
        hook = self.folder / "hook"
        hook.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" >> {self.folder}/told\n")
        hook.chmod(0o755)
        daemon = self.daemon(output={"formats": ["jsonl", "npz", "csv"]}, on_done=str(hook)).start()
        daemon.drop("bear.mp4", "until=seen")
        running = wait_for(lambda: next((d for d in daemon.status()["devices"] if d.get("job")), None), "it runs")
        names = ["bear.tracks.csv", "bear.tracks.jsonl", "bear.tracks.npz"]
        self.assertEqual(sorted(running["outputs"]), names)
        daemon.say("seen")
        done = daemon.event("job_done")
        self.assertEqual((done["output"], done["formats"]), ("bear.tracks.npz", "npz, csv, jsonl"))
        self.assertEqual(daemon.results(), names)
        self.assertEqual(done["output_bytes"], sum(daemon.path("tracks", n).stat().st_size for n in names))
        told = self.folder / "told"
        wait_for(lambda: told.exists() and len(told.read_text().splitlines()) == 3, "on_done got all paths")
        self.assertEqual(sorted(told.read_text().splitlines()), [str(daemon.path("tracks", n)) for n in names])

    def test_a_directory_has_its_own_formats(self):
        daemon = self.daemon(spool={"recursive": True}).start()
        daemon.path("incoming", "tables").mkdir()
        daemon.path("incoming", "tables", "tiletrack.yaml").write_text("output: {formats: [csv]}\n")
        daemon.drop("bear.mp4", into="incoming/tables")
        daemon.drop("bear.mp4")
        daemon.drop("cub.mp4", into="incoming/priority/tables")  # an order, not another place
        daemon.event("job_done", 3)
        self.assertEqual(daemon.names("tracks/tables"), ["bear.tracks.csv", "cub.tracks.csv"])
        self.assertEqual(daemon.names("tracks"), ["bear.tracks.npz"])

    def test_formats_that_change_while_a_job_waits(self):
        daemon = self.daemon().start()
        daemon.drop("bear.mp4", "until=reloaded")
        daemon.event("job_started")
        daemon.drop("cub.mp4")  # it is claimed, for it comes next
        daemon.event("job_claimed", file="cub.mp4")
        daemon.config["output"] = {"formats": ["csv", "jsonl"]}
        daemon.write_config()
        daemon.signal(1)
        daemon.event("config_reloaded")
        daemon.say("reloaded")
        daemon.event("job_done", 2)
        self.assertEqual(daemon.results(), ["bear.tracks.npz", "cub.tracks.csv", "cub.tracks.jsonl"])

    def test_a_name_that_is_taken_meanwhile(self):
        daemon = self.daemon(output={"formats": ["npz", "csv"]}).start()
        daemon.drop("bear.mp4", "until=taken")
        daemon.event("job_started")
        daemon.path("tracks", "bear.tracks.csv").write_text("theirs")
        daemon.say("taken")
        renamed, done = daemon.event("output_renamed"), daemon.event("job_done")
        self.assertEqual((renamed["claimed"], renamed["output"]), ("bear.tracks.npz", "bear~2.tracks.npz"))
        self.assertEqual(done["output"], "bear~2.tracks.npz")
        self.assertEqual(daemon.results(), ["bear.tracks.csv", "bear~2.tracks.csv", "bear~2.tracks.npz"])
        self.assertEqual(daemon.path("tracks", "bear.tracks.csv").read_text(), "theirs")

    def test_the_manifest_holds_all_names(self):
        daemon = self.daemon(output={"formats": ["npz", "jsonl"]}).start()
        daemon.drop("bear.mp4", "until=read")
        daemon.event("job_started")
        manifest = json.loads(next(daemon.path("work").glob("*/*/manifest.json")).read_text())
        self.assertEqual({f: n["text"] for f, n in manifest["outputs"].items()},
                         {"npz": "bear.tracks.npz", "jsonl": "bear.tracks.jsonl"})
        daemon.say("read")
        daemon.event("job_done")

    def test_what_a_dead_daemon_had_decided_is_told(self):
        hook = self.folder / "hook"
        hook.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" >> {self.folder}/told\n")
        hook.chmod(0o755)
        daemon = self.daemon(output={"formats": ["npz", "csv"]}, on_done=str(hook)).start()
        daemon.drop("bear.mp4", "ms=60000")
        job = daemon.event("job_started")["job"]
        daemon.kill()
        folder = next(daemon.path("work").glob(f"*/{job}"))
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest.update(state="committing", outcome="done", target=manifest["source"])
        (folder / "manifest.json").write_text(json.dumps(manifest))
        (folder / "result.1.csv").write_text("csv")  # the other one is published
        daemon.path("tracks", "bear.tracks.npz").write_text("npz")
        daemon.start()
        told = daemon.event("job_recovered")
        self.assertEqual((told["job"], told["file"], told["outcome"], told["output"]),
                         (job, "bear.mp4", "done", "bear.tracks.npz"))
        self.assertEqual(daemon.path("tracks", "bear.tracks.csv").read_text(), "csv")
        self.assertEqual(daemon.names("done"), ["bear.mp4"])
        wait_for(lambda: (self.folder / "told").exists(), "on_done was run")
        self.assertEqual(daemon.events("job_claimed"), [])


if __name__ == "__main__":
    main()
