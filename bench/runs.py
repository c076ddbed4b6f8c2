"""What the benchmarks of whole runs share: a text to train on, a machine's description, and a run beside its prediction."""
import json, os, random, subprocess, tempfile


class Bench:
    def __init__(self, onefold, device="cpu", threads=0):
        self.onefold, self.device, self.threads = onefold, device, threads
        self.folder = tempfile.TemporaryDirectory(prefix="onefold-bench-")
        self.machines = {}
        words, draw = ["stone", "river", "light", "under", "seven", "winter", "a", "of"], random.Random(1)
        with open(self.path("text.txt"), "w") as text:
            text.write(" ".join(draw.choice(words) for _ in range(1_000_000)))

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def call(self, *words):
        done = subprocess.run([self.onefold, *map(str, words)], capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"onefold {' '.join(map(str, words))}: {done.stderr.strip()[-600:]}")
        return done.stdout

    def machine(self, ranks):
        """A description of what each of so many ranks has, measured once."""
        if ranks not in self.machines:
            path = self.path(f"machine{ranks}.json")
            self.call("info", "--save", path, "--device", self.device, "--ranks", ranks, "--disk", self.folder.name,
                      "--threads", self.threads)
            self.machines[ranks] = path
        return self.machines[ranks]

    def write(self, config, steps, threads_of_rank=0):
        """A configuration file that trains on the text."""
        config = json.loads(json.dumps(config))
        config["data"] = {"train": self.path("text.txt"), **config.get("data", {})}
        config["run"] = {"steps": steps, "device": self.device, **config.get("run", {})}
        if threads_of_rank:
            config["run"]["threads"] = threads_of_rank
        for section in config.get("zero_optimization", {}).values():
            if isinstance(section, dict) and section.get("device") == "nvme":
                section["nvme_path"] = self.folder.name
        path = self.path("config.json")
        with open(path, "w") as file:
            json.dump(config, file)
        return path

    def predicted(self, config, ranks):
        """Seconds of a step, as planned."""
        words = ["plan", self.write(config, 1), "--hardware", self.machine(ranks), "--json", "--ranks", ranks]
        return json.loads(self.call(*words))["predicted_step_seconds"]

    def run(self, config, ranks, steps):
        """Seconds of a step: predicted, and measured over all steps but the first."""
        words = ["train", self.write(config, steps), "--hardware", self.machine(ranks), "--json"]
        result = json.loads(self.call(*words, *(["--ranks", ranks] if ranks > 1 else [])))
        return result["predicted_step_seconds"], result["step_seconds"]
