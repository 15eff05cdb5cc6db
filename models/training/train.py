"""One sitting of training: train.py --config FILE --resume DIR --out DIR --budget SECONDS

A sitting goes on where the checkpoint in --resume stopped (or begins from the configuration's `start` weights), and ends
by itself before --budget. The learning rate is one cosine over `total_seconds` of stepping, whatever the number of
sittings; or, with `sitting_rate`, one cosine from that rate to nothing over the time that this sitting has, so that its
weights can be published. The generator's state is the number of the next batch. Stopped at any moment, at most a minute
is lost; SIGTERM ends the steps with a checkpoint.

A checkpoint: raw-N, ema-N, spread-N.safetensors (float16, each below 16 MiB: weights, their moving average, the roots of
Adam's second moments; the first ones are rebuilt in a few steps) and state.json (step, seconds, next batch,
configuration), which is written last and names the others.
"""
import argparse
import json
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import time

os.environ.setdefault('OPENBLAS_NUM_THREADS', '1')
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import numpy as np
import torch
import torch.nn.functional as F

import checkpoint
import evaluate
import model as M
from render import Renderer
from scenes import Recipe, draw_batch
from textures import Textures

if hasattr(torch, '_inductor'):     # PyTorch 2.11's analysis of coalescing fails an assertion of its own on `refine`
    import torch._inductor.config as inductor
    if hasattr(inductor.triton, 'coalesce_tiling_analysis'):
        inductor.triton.coalesce_tiling_analysis = False

DEFAULTS = dict(size='small', start='../tiletrack-small.safetensors', batch=8, frames=24, queries=128, peak_rate=1e-3,
                weight_decay=1e-3, warm_up=200, total_seconds=14400.0, sitting_rate=0.0, ema=0.9995, clip=1.0, knee=4.0, seed=20261130,
                validation_clips=24, final={}, recipe={})
CHECKPOINT_EVERY, LOG_EVERY = 60.0, 100
SPARE = 60.0            # seconds before a sitting's end when its own cosine has come down: it may be stopped early
LONGEST_STEP = 3.0      # seconds that a step may cost of the schedule: a stopped process does not learn


def say(**entry):
    print(json.dumps(entry), flush=True)


def read_config(path):
    with open(path) as f:
        given = json.load(f)
    unknown = set(given) - set(DEFAULTS)
    if unknown:
        raise ValueError(f'{path}: unknown entries {sorted(unknown)}')
    wrong = set(given.get('final', {})) - {'after', 'batch', 'frames', 'queries'}
    if wrong:
        raise ValueError(f'{path}: unknown entries {sorted(wrong)} of final')
    return {**DEFAULTS, **given, 'recipe': json.loads(Recipe.parse(given.get('recipe', {})).text())}


def for_sitting(config, seconds):
    """The configuration of a sitting that begins `seconds` into the schedule: from final['after'] on, the final batch,
    frames and queries. A sitting has one shape, since compiling another takes minutes."""
    final = config['final']
    if not final or seconds < final['after']:
        return config
    return {**config, **{k: v for k, v in final.items() if k != 'after'}}


# -------------------------------------------------------------------------------------------------------- data

class Feed:
    """Worker processes draw batches ahead; they come in order, so a run can be repeated from its next batch's number.
    Started before CUDA is used (the processes are forks)."""

    def __init__(self, config, textures, first, workers):
        context = multiprocessing.get_context('fork')
        self.next, self.queues, self.workers = 0, [], []
        for w in range(workers):
            queue = context.Queue(3)
            process = context.Process(target=self.draw, args=(config, textures, first + w, workers, queue), daemon=True)
            process.start()
            self.queues.append(queue)
            self.workers.append(process)

    @staticmethod
    def draw(config, textures, index, stride, queue):
        recipe = Recipe.parse(config['recipe'])
        while True:
            shape = config['batch'], config['frames'], config['queries']
            try:
                batch = draw_batch(recipe, textures, config['seed'], index, *shape)
            except Exception as error:                          # another batch in its place, the same one every time
                say(event='draw failed', index=index, error=f'{type(error).__name__}: {error}')
                batch = draw_batch(recipe, textures, config['seed'] + 1, index, *shape)
            queue.put(batch)
            index += stride

    def take(self):
        batch = self.queues[self.next].get(timeout=120)
        self.next = (self.next + 1) % len(self.queues)
        return batch

    def stop(self):
        for process in self.workers:
            process.terminate()


# -------------------------------------------------------------------------------------------------------- loss

def huber(away, knee):
    """Of distances in px. With the knee at 4 px it is TAPIR's (x 0.05); a smaller knee leaves the pull on what is farther off
    as it is, 0.2 a px, and pulls harder on what is nearer."""
    return torch.where(away < knee, away * away / 2, knee * (away - knee / 2)) * (0.2 / knee)


def losses(states, truth, hidden, knee):
    """TAPIR's, summed over the initialisation and the refinements: Huber of the visible points, cross-entropy
    of occlusion, and of 'more than 6 px off' where visible. Returns the sum and [5,3] parts."""
    visible, total, parts = (~hidden).float(), 0.0, []
    for points, occlusion, distance in states:
        square = ((points - truth) ** 2).sum(-1)
        away = torch.sqrt(square + 1e-12)
        place = (huber(away, knee) * visible).mean()
        seen = F.binary_cross_entropy_with_logits(occlusion, hidden.float())
        off = F.binary_cross_entropy_with_logits(distance, (square.detach() > 36).float(), reduction='none')
        off = (off * visible).mean()
        total = total + place + seen + off
        parts.append(torch.stack([place, seen, off]).detach())
    return total, torch.stack(parts)


def rate_at(config, seconds, sitting_done, steps_since_start, warm_up):
    """Cosine from the peak to almost nothing, over total_seconds or over the sitting (of which the share sitting_done is
    over), with a ramp after every start."""
    done = sitting_done if config['sitting_rate'] else seconds / config['total_seconds']
    peak = config['sitting_rate'] or config['peak_rate']
    return peak * (0.005 + 0.995 * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))) * min(1.0, (steps_since_start + 1) / warm_up)


# ------------------------------------------------------------------------------------------------- checkpoints

def pack_spread(tensors):
    """Adam's second moments as their roots in float16, with one float32 scale a tensor."""
    out = {}
    for name, t in tensors.items():
        root = t.detach().float().sqrt()
        scale = float(root.max()) or 1.0
        out[name] = (root / scale).to(torch.float16).cpu().numpy()
        out[name + '.scale'] = np.float32([scale])
    return out


def unpack_spread(arrays):
    """The inverse, with a floor: float16 has lost the smallest ones, and their steps must not explode."""
    out = {}
    for name, a in arrays.items():
        if not name.endswith('.scale'):
            root = torch.from_numpy(a.astype(np.float32)) * float(arrays[name + '.scale'][0])
            out[name] = (root * root).clamp(min=float(root.max()) ** 2 * 1e-7)
    return out


class Run:
    """Everything that a checkpoint holds."""

    def __init__(self, config, device):
        self.config, self.device = config, device
        self.net, self.ema = M.LocoTrack(config['size']).to(device), M.LocoTrack(config['size']).to(device)
        if device == 'cuda':
            self.net.resnet_torch.to(memory_format=torch.channels_last)
        decayed = [p for n, p in self.net.named_parameters() if 'bias' not in n]
        free = [p for n, p in self.net.named_parameters() if 'bias' in n]
        extra = {'fused': True} if device == 'cuda' else {}
        self.optimiser = torch.optim.AdamW([{'params': decayed, 'weight_decay': config['weight_decay']},
                                            {'params': free, 'weight_decay': 0.0}], lr=0.0, **extra)
        self.step, self.seconds, self.batch, self.sitting, self.warm_up = 0, 0.0, 0, 0, config['warm_up']

    def begin(self, path):
        """From weights alone (or from nothing)."""
        if path:
            checkpoint.load_model(self.net, path)
        self.ema.load_state_dict(self.net.state_dict())

    def resume(self, folder):
        with open(os.path.join(folder, 'state.json')) as f:
            state = json.load(f)
        files = state['files']
        checkpoint.load_model(self.net, os.path.join(folder, files['raw']))
        ema = os.path.join(folder, files['ema'])                # without it the average begins anew
        checkpoint.load_model(self.ema, ema if os.path.exists(ema) else os.path.join(folder, files['raw']))
        self.step, self.seconds, self.batch, self.sitting = (state[k] for k in ('step', 'seconds', 'batch', 'sitting'))
        spread = os.path.join(folder, files['spread'])
        if os.path.exists(spread):
            self.resume_optimiser(unpack_spread(checkpoint.load(spread)[0]))
        return state

    def resume_optimiser(self, spread):
        for name, p in self.net.named_parameters():
            if name in spread:
                self.optimiser.state[p] = {'step': torch.tensor(float(self.step), device=p.device if p.is_cuda else 'cpu'),
                                           'exp_avg': torch.zeros_like(p.detach()), 'exp_avg_sq': torch.zeros_like(p.detach())}
                self.optimiser.state[p]['exp_avg_sq'].copy_(spread[name])
        self.warm_up = 50

    def save(self, folder, facts):
        files = {k: f'{k}-{self.step}.safetensors' for k in ('raw', 'ema', 'spread')}
        at = lambda k: os.path.join(folder, files[k])
        checkpoint.save_half(at('raw'), self.net.state_dict())
        checkpoint.save_half(at('ema'), self.ema.state_dict())
        moments = {n: self.optimiser.state[p] for n, p in self.net.named_parameters() if self.optimiser.state.get(p)}
        checkpoint.save(at('spread'), pack_spread({n: s['exp_avg_sq'] for n, s in moments.items()}))
        state = dict(step=self.step, seconds=round(self.seconds, 2), batch=self.batch, sitting=self.sitting, files=files,
                     config=self.config, facts=facts)
        checkpoint.write_whole(os.path.join(folder, 'state.json'), json.dumps(state, indent=1).encode())
        for name in os.listdir(folder):
            if name.split('-')[0] in files and name.endswith(('.safetensors', '.part')) and name not in files.values():
                os.remove(os.path.join(folder, name))
        too_large = [n for n in files.values() if os.path.getsize(os.path.join(folder, n)) > checkpoint.PIECE]
        if too_large:
            say(warning='file above 16 MiB', files=too_large)


# ------------------------------------------------------------------------------------------------------- steps

class Stepper:
    """The network's half of a step, in the fastest form that works here: each form is tried, and given up for the next
    if it raises or if its loss is not that of the plain form."""
    FORMS = ((True, True), (True, False), (False, True), (False, False))         # compiled, fused

    def __init__(self, run, forms=None):
        self.run, self.knee = run, run.config['knee']
        self.forms = forms or (self.FORMS if run.device == 'cuda' else ((False, False),))
        self.dtype = torch.bfloat16 if run.device == 'cuda' else torch.float32
        self.choose(0)
        self.bad = torch.zeros((), device=run.device)

    def choose(self, i):
        self.form = i
        compiled, fused = self.forms[i]
        self.tracker = M.Tracker(self.run.net, self.dtype, compiled, fused and M.triton is not None)

    def loss(self, video, batch):
        states = self.tracker(video, batch['queries'])
        total, parts = losses(states, batch['tracks'], batch['hidden'], self.knee)
        return total, parts, states

    def settle(self, video, batch):
        """Find the form: forward and backward must run and agree with the plain form on half a batch's loss."""
        if self.run.device != 'cuda':
            return
        self.check_fused()
        small = {k: batch[k][:2] for k in ('queries', 'tracks', 'hidden')}
        with torch.no_grad():
            plain = M.Tracker(self.run.net, self.dtype)
            reference = float(losses(plain(video[:2], small['queries']), small['tracks'], small['hidden'], self.knee)[0])
            whole = 0.0
            for i in range(0, len(video), 2):
                part = plain(video[i:i + 2], batch['queries'][i:i + 2])
                whole += float(losses(part, batch['tracks'][i:i + 2], batch['hidden'][i:i + 2], self.knee)[0]) * 2 / len(video)
        say(check='plain loss', first_two=round(reference, 4), whole=round(whole, 4))
        while True:
            began = time.time()
            try:
                total, _, _ = self.loss(video, batch)
                total.backward()
                ours = float(total)
                norm = float(torch.nn.utils.clip_grad_norm_(self.run.net.parameters(), 1e9))
                good = abs(ours - whole) < 0.05 * abs(whole) + 0.02 and math.isfinite(norm)
            except Exception as error:                                          # a compiler's failure, of any kind
                good, ours, norm = False, None, None
                say(check='form failed', form=self.forms[self.form], error=f'{type(error).__name__}: {error}'[:600])
            self.run.net.zero_grad(set_to_none=True)
            say(check='form', form=self.forms[self.form], good=good, loss=ours, gradient=norm, s=round(time.time() - began, 1))
            if good:
                return
            if self.form + 1 == len(self.forms):
                raise RuntimeError('no form of the network works here')
            self.choose(self.form + 1)

    def check_fused(self):
        """Leave out the forms with the Triton correlation if its values or gradients are wrong here."""
        try:
            errors = M.correlation_errors(self.run.device) if M.triton is not None else [math.inf]
        except Exception as error:
            errors = [math.inf]
            say(check='correlation failed', error=f'{type(error).__name__}: {error}'[:600])
        say(check='correlation', errors=[round(e, 5) if math.isfinite(e) else None for e in errors])
        if not max(errors) < 0.02:
            self.forms = tuple(f for f in self.forms if not f[1])
            self.choose(0)

    def step(self, video, batch, rate):
        run = self.run
        for group in run.optimiser.param_groups:
            group['lr'] = rate
        total, parts, states = self.loss(video, batch)
        run.optimiser.zero_grad(set_to_none=True)
        total.backward()
        norm = torch.nn.utils.clip_grad_norm_(run.net.parameters(), run.config['clip'])
        bad = (~torch.isfinite(norm)).float().reshape(())
        if run.device == 'cuda':
            run.optimiser.found_inf = bad                       # the fused optimiser skips such a step, without a wait
            run.optimiser.step()
        elif not bad:
            run.optimiser.step()
        self.bad += bad
        decay = run.config['ema']
        with torch.no_grad():
            ours = list(run.ema.parameters())
            torch._foreach_mul_(ours, decay)
            torch._foreach_add_(ours, [p.detach() for p in run.net.parameters()], alpha=1 - decay)
        run.step += 1
        return total.detach(), norm.detach(), parts, states


class Meter:
    """Means since the last line. Times of drawing on the GPU by events, so that the share of the network is measured."""

    def __init__(self, device):
        self.cuda = device == 'cuda'
        self.reset()

    def reset(self):
        self.total, self.norm, self.steps, self.marks, self.waited, self.began = 0, 0, 0, [], 0.0, time.time()

    def mark(self):
        if not self.cuda:
            return time.time()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def add(self, total, norm, marks, waited):
        self.total, self.norm, self.steps = self.total + total, self.norm + norm, self.steps + 1
        self.marks.append(marks)
        self.waited += waited

    def line(self):
        if self.cuda:
            torch.cuda.synchronize()
        span = lambda a, b: a.elapsed_time(b) if self.cuda else (b - a) * 1e3
        draw, net = (sum(span(*pair) for pair in pairs) / self.steps
                     for pairs in ([m[:2] for m in self.marks], [m[1:] for m in self.marks]))
        step = (time.time() - self.began) * 1e3 / self.steps
        return dict(ms=round(step, 1), draw_ms=round(draw, 1), net_ms=round(net, 1), net_share=round(net / step, 3),
                    wait_ms=round(self.waited * 1e3 / self.steps, 1), loss=round(float(self.total) / self.steps, 4),
                    gradient=round(float(self.norm) / self.steps, 3))


def accuracy(state, batch):
    away = ((state[0] - batch['tracks']) ** 2).sum(-1).sqrt()[~batch['hidden']]
    return [round(float((away < t).float().mean()), 3) for t in (1, 4, 16)]


# ------------------------------------------------------------------------------------------------------ sitting

def validate(run, pack, renderer, clips):
    """The EMA on the first held-out clips, in float32."""
    held = Textures(pack, held_out=True)
    e = evaluate.EVALUATION
    frames, queries = (e['frames'], e['queries']) if run.device == 'cuda' else (6, 8)
    scenes = evaluate.held_out(held, clips, frames, queries, e['seed'], e['recipe'])
    began = time.time()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    result = evaluate.measure(M.Tracker(run.ema), Renderer(held, run.device), scenes, run.device)
    return {**result, 's': round(time.time() - began, 1)}


def compile_renderer(renderer, batch):
    """Compiled if that works."""
    began = time.time()
    try:
        renderer.compile(True)
        renderer.render(batch)
    except Exception as error:
        renderer.compile(False)
        say(check='renderer failed', error=f'{type(error).__name__}: {error}'[:600])
    say(check='renderer', compiled=renderer.compiled, s=round(time.time() - began, 1))


class Helpers:
    """Processes that compile a part of the program beside us and leave it in the compiler's cache on the disk, where we
    find it. They may fail or be late: then we compile that part ourselves."""
    PARTS = 'renderer', 'refine'

    def __init__(self, arguments, out):
        self.log = open(os.path.join(out, 'helpers.log'), 'ab')
        command = [sys.executable, os.path.join(HERE, 'train.py'), *arguments, '--only-compile']
        self.processes = {part: subprocess.Popen(command + [part], stdout=self.log, stderr=self.log) for part in self.PARTS}

    def wait(self, part, seconds):
        try:
            return self.processes[part].wait(seconds)
        except subprocess.TimeoutExpired:
            return 'late'

    def stop(self):
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()
        self.log.close()


def only_compile(config, resume, part, pack, limit):
    """What a helper does: the part's graphs, forward and backward, with tensors of the shapes of training."""
    began = time.time()
    set_up(config)
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    state = read_state(resume)
    shape = for_sitting(config, state['seconds'] if state else 0.0)
    textures = Textures(pack, limit=limit, threads=2)
    batch = draw_batch(Recipe.parse(config['recipe']), textures, config['seed'], 0, *(shape[k] for k in ('batch', 'frames', 'queries')))
    renderer = Renderer(textures, device)
    if part == 'renderer':
        compile_renderer(renderer, batch)
    else:
        stepper = Stepper(Run(config, device), (((part,), device == 'cuda'),))
        video = renderer.render(batch).float() / 127.5 - 1
        stepper.loss(video, renderer.upload({k: batch[k] for k in ('queries', 'tracks', 'hidden')}))[0].backward()
    say(compiled=part, s=round(time.time() - began, 1))


def set_up(config):
    """What the compiler's cache depends on too."""
    torch.manual_seed(config['seed'])
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True


def read_state(folder):
    path = os.path.join(folder, 'state.json')
    if not folder or not os.path.exists(path):
        return None
    with open(path) as f:
        return json.load(f)


def sitting(config, resume, out, budget, pack, plain=False, max_steps=10 ** 9, workers=None, limit=None, arguments=None):
    """`arguments` are the command line's, for helpers (none without them)."""
    began = time.time()
    os.makedirs(out, exist_ok=True)
    state = read_state(resume)
    textures = Textures(pack, limit=limit, threads=os.cpu_count())
    workers = workers or max(1, min(14, os.cpu_count() - 2))
    feed = Feed(for_sitting(config, state['seconds'] if state else 0.0), textures, state['batch'] if state else 0, workers)
    say(event='textures', photos=len(textures.photos), stamps=len(textures.stamps), s=round(time.time() - began, 1))
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    helpers = Helpers(arguments, out) if arguments and device == 'cuda' and not plain else None
    set_up(config)
    run = Run(config, device)
    if state:
        run.resume(resume)
    else:
        run.begin(config['start'] and os.path.join(HERE, config['start']))
    run.sitting += 1
    say(event='begin', sitting=run.sitting, step=run.step, seconds=run.seconds, device=device, torch=torch.__version__)
    batch = feed.take()
    renderer = Renderer(textures, device)
    stepper = Stepper(run, ((False, False),) if plain else None)
    video = renderer.render(batch).float() / 127.5 - 1
    stepper.settle(video, renderer.upload({k: batch[k] for k in ('queries', 'tracks', 'hidden')}))
    if device == 'cuda' and not plain:
        say(helper='renderer', result=helpers and helpers.wait('renderer', 45))
        compile_renderer(renderer, batch)
    if helpers:
        helpers.stop()
    try:
        told = loop(run, feed, renderer, stepper, batch, out, began, budget, max_steps)
    finally:
        feed.stop()
    if config['validation_clips'] and time.time() - began < budget and not told:
        del video
        facts = validate(run, pack, renderer, config['validation_clips'])
        say(event='validation', step=run.step, **facts)
        run.save(out, facts)
    say(event='end', step=run.step, seconds=round(run.seconds, 1), s=round(time.time() - began, 1))


def loop(run, feed, renderer, stepper, batch, out, began, budget, max_steps):
    """Steps until the budget (less a reserve for the validation and the last checkpoint) is used up; returns whether
    SIGTERM ended it before."""
    config, meter = run.config, Meter(run.device)
    reserve = (5 + 0.6 * config['validation_clips']) if run.device == 'cuda' else 0
    first, start, last_save, last_time = run.step, time.time(), time.time(), time.time()
    end = began + budget - reserve
    down = max(end - SPARE, start + (end - start) / 2)          # when the sitting's own cosine has come down
    told = []
    before = signal.signal(signal.SIGTERM, lambda *_: told.append(True))
    say(event='first step', s=round(start - began, 1))
    waited = 0.0
    while time.time() < end and run.step - first < max_steps and not told:
        marks = [meter.mark()]
        truth = renderer.upload({k: batch[k] for k in ('queries', 'tracks', 'hidden')})
        video = renderer.render(batch).float() / 127.5 - 1
        marks.append(meter.mark())
        rate = rate_at(config, run.seconds, (time.time() - start) / (down - start), run.step - first, run.warm_up)
        total, norm, parts, states = stepper.step(video, truth, rate)
        marks.append(meter.mark())
        meter.add(total, norm, marks, waited)
        run.batch += 1
        now = time.time()
        run.seconds, last_time = run.seconds + min(now - last_time, LONGEST_STEP), now
        if run.step % LOG_EVERY == 0 or run.step - first in (5, 20):
            say(step=run.step, t=round(now - began, 1), seconds=round(run.seconds, 1), rate=round(rate, 7), **meter.line(),
                skipped=int(stepper.bad), initial=accuracy(states[0], truth), refined=accuracy(states[-1], truth),
                parts=[round(float(x), 3) for x in parts[-1]])
            meter.reset()
        if now - last_save > CHECKPOINT_EVERY:
            run.save(out, {})
            last_save = time.time()
        fetch = time.time()
        batch = feed.take()
        waited = time.time() - fetch
    run.save(out, {})
    signal.signal(signal.SIGTERM, before)
    return bool(told)


def main(arguments=None):
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument('--config', required=True)
    p.add_argument('--resume', default='', help='folder of a checkpoint; without one a run begins')
    p.add_argument('--out', required=True)
    p.add_argument('--budget', type=float, required=True, help='seconds of this sitting, everything included')
    p.add_argument('--pack', default=os.path.join(HERE, 'pack'))
    p.add_argument('--plain', action='store_true', help='no compiler, no Triton')
    p.add_argument('--max-steps', type=int, default=10 ** 9)
    p.add_argument('--workers', type=int)
    p.add_argument('--limit', type=int, help='load only so many textures of each kind')
    p.add_argument('--only-compile', choices=Helpers.PARTS, help='compile a part into the cache, no more: what helpers do')
    a = p.parse_args(arguments)
    config = read_config(a.config)
    if a.only_compile:
        return only_compile(config, a.resume, a.only_compile, a.pack, a.limit)
    sitting(config, a.resume, a.out, a.budget, a.pack, a.plain, a.max_steps, a.workers, a.limit,
            sys.argv[1:] if arguments is None else list(arguments))


if __name__ == '__main__':
    main()
