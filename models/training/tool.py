"""The commands of the training folder:

    tool.py make-textures [--sources DIR] [--pack DIR]          download Debian packages, build the texture pack
    tool.py render OUT.png [--clips N] [--seed S] [--held-out] [--recipe JSON]    a contact sheet with tracks: look at it
    tool.py pictures DIR                                        four clips of formula surfaces, for models/CARD.md's pictures
    tool.py train --config FILE --resume DIR --out DIR --budget SECONDS           one sitting
    tool.py evaluate WEIGHTS [--clips N] [--write DIR] [--tracks DIR]             measures on the held-out set
    tool.py export CHECKPOINT OUT.safetensors [--mean-with WEIGHTS]               the moving average -> models/
"""
import argparse
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
PACK = os.path.join(HERE, 'pack')


def make_textures(p):
    p.add_argument('--sources', default=os.path.join(HERE, 'pack', 'sources'))
    p.add_argument('--pack', default=PACK)
    a = p.parse_args()
    import textures
    textures.make(a.sources, a.pack)


def render(p):
    p.add_argument('out')
    p.add_argument('--clips', type=int, default=6)
    p.add_argument('--frames', type=int, default=24)
    p.add_argument('--seed', type=int, default=1)
    p.add_argument('--held-out', action='store_true')
    p.add_argument('--recipe', default='{}', help='switches as JSON, e.g. {"solids": 1, "orbit": 1}')
    p.add_argument('--pack', default=PACK)
    p.add_argument('--limit', type=int)
    a = p.parse_args()
    import evaluate
    from render import Renderer
    from scenes import Recipe
    from textures import Textures
    textures = Textures(a.pack, a.held_out, a.limit)
    evaluate.contact_sheet(a.out, textures, Renderer(textures, device()), Recipe.parse(json.loads(a.recipe)), a.seed, a.clips,
                           a.frames)


def pictures(p):
    p.add_argument('out')
    a = p.parse_args()
    from pictures import write
    write(a.out, device())


def train(p):
    import train as sitting
    sitting.main(sys.argv[1:])


def evaluate(p):
    p.add_argument('weights', nargs='?', help='safetensors; may be left out with --write or --tracks')
    p.add_argument('--size', default='small')
    p.add_argument('--clips', type=int)
    p.add_argument('--write', metavar='DIR', help='write the clips, queries and truth for the C program')
    p.add_argument('--tracks', metavar='DIR', help='measure track files made from the clips that --write wrote')
    p.add_argument('--pack', default=PACK)
    a = p.parse_args()
    import checkpoint
    import evaluate as e
    import model
    from render import Renderer
    from textures import Textures
    if a.write and a.tracks:
        print(json.dumps(e.measure_files(a.write, a.tracks), indent=1))
        return
    held = Textures(a.pack, held_out=True)
    renderer = Renderer(held, device())
    if a.write:
        e.write_set(a.write, held, renderer, a.clips)
    if a.weights:
        net = model.LocoTrack(a.size).to(device())
        checkpoint.load_model(net, a.weights)
        s = e.EVALUATION
        scenes = e.held_out(held, a.clips or s['clips'], s['frames'], s['queries'], s['seed'], s['recipe'])
        print(json.dumps(e.measure(model.Tracker(net), renderer, scenes, device()), indent=1))


def export(p):
    p.add_argument('checkpoint', help='folder with state.json')
    p.add_argument('out')
    p.add_argument('--mean-with', metavar='WEIGHTS', help='half of each: the average and earlier weights of the same run')
    a = p.parse_args()
    import checkpoint
    with open(os.path.join(a.checkpoint, 'state.json')) as f:
        state = json.load(f)
    config = state['config']
    meta = {'format': 'pt', 'model': f'LocoTrack {config["size"]}, public tensor names',
            'what': 'moving average of the weights, trained on synthetic video only; see models/CARD.md',
            'input': 'video 256x256 RGB in [-1,1]; the centre of pixel i at i+0.5; queries t,y,x',
            'training': json.dumps({k: state[k] for k in ('step', 'seconds', 'sitting', 'config')}),
            'figures': json.dumps(state['facts'])}
    if a.mean_with:
        meta['what'] = 'mean of a moving average and of the weights its run began from; see models/CARD.md'
    print(checkpoint.export(os.path.join(a.checkpoint, state['files']['ema']), a.out, meta, a.mean_with), 'bytes')


def device():
    import torch
    return 'cuda' if torch.cuda.is_available() else 'cpu'


COMMANDS = {'make-textures': make_textures, 'render': render, 'pictures': pictures, 'train': train, 'evaluate': evaluate, 'export': export}


def main():
    if len(sys.argv) < 2 or sys.argv[1] not in COMMANDS:
        sys.exit(__doc__)
    name = sys.argv.pop(1)
    COMMANDS[name](argparse.ArgumentParser(prog=f'tool.py {name}'))


if __name__ == '__main__':
    main()
