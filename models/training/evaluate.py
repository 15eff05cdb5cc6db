"""TAP-Vid's measures, the held-out synthetic set, and its files.

The set (committed recipe: EVALUATION below): clips of 47 frames with 64 queries, held-out textures, fixed seed. Each clip
is written as NAME/%03d.png (256x256 RGB), NAME.queries.csv (frame,x,y) and NAME.truth.npz (tracks [N,T,2] x,y raster
pixels, occluded [N,T], query_points [N,3] t,y,x), so that the C program can be measured on the same pixels.
"""
import json
import os

import numpy as np
import torch

import model as M
from scenes import Recipe, draw_batch

# Switches that are younger than the set are off in it, so that figures stay comparable.
EVALUATION = dict(seed=4242, frames=47, queries=64, clips=64, recipe=Recipe(fold=0.0, tiny=0.0, aim=0.0))
THRESHOLDS = (1, 2, 4, 8, 16)


def tap_vid(points, occluded, truth, hidden, queries):
    """One clip: predicted points [N,T,2] and occluded [N,T] against the truth; all frames but the query's own count.
    Pixels of 256x256. Returns delta_avg, AJ, OA and the share of visible points within each threshold."""
    T = points.shape[1]
    counted = np.round(queries[:, :1]).astype(int) != np.arange(T)
    visible = ~hidden & counted
    distance = np.sqrt(((points - truth) ** 2).sum(-1))
    claimed = ~occluded & counted
    result, within, jaccard = {'OA': float(((occluded == hidden) & counted).sum() / counted.sum())}, [], []
    for t in THRESHOLDS:
        near = distance < t
        within.append((near & visible).sum() / max(visible.sum(), 1))
        true = (near & visible & claimed).sum()
        false = (claimed & ~(visible & near)).sum()
        jaccard.append(true / max(visible.sum() + false, 1))
        result[f'within_{t}'] = float(within[-1])
    result['delta_avg'], result['AJ'] = float(np.mean(within)), float(np.mean(jaccard))
    return result


def mean(results):
    return {k: round(float(np.mean([r[k] for r in results])), 4) for k in results[0]} if results else {}


def held_out(textures, clips, frames, queries, seed, recipe):
    """Yields scenes one by one (batches of one clip)."""
    for i in range(clips):
        yield draw_batch(recipe, textures, seed, i, 1, frames, queries)


@torch.no_grad()
def measure(tracker, renderer, scenes, device):
    """Mean measures of the refined tracks and of the initialisation, and per kind of scene."""
    refined, first = [], []
    kinds = {'solids': [], 'layers': []}
    for scene in scenes:
        video = renderer.render(scene).float() / 127.5 - 1
        states = tracker(video, torch.from_numpy(scene['queries']).to(device))
        for state, results in ((states[-1], refined), (states[0], first)):
            points = state[0][0].float().cpu().numpy()
            occluded = (M.hidden(state[1], state[2])[0] > 0.5).cpu().numpy()
            results.append(tap_vid(points, occluded, scene['tracks'][0], scene['hidden'][0], scene['queries'][0]))
        kinds['solids' if scene['solid_clips'] else 'layers'].append(refined[-1])
    return dict(refined=mean(refined), initial=mean(first), clips=len(refined),
                **{f'delta_{k}': mean(v).get('delta_avg') for k, v in kinds.items()})


def write_clip(folder, name, video, scene):
    """video uint8 [T,256,256,3]."""
    import cv2
    os.makedirs(os.path.join(folder, name), exist_ok=True)
    for t, frame in enumerate(video):
        cv2.imwrite(os.path.join(folder, name, f'{t:03d}.png'), frame[..., ::-1])
    queries = scene['queries'][0]
    with open(os.path.join(folder, f'{name}.queries.csv'), 'w') as f:
        f.write('frame,x,y\n')
        f.writelines(f'{int(t)},{x:.4f},{y:.4f}\n' for t, y, x in queries)
    np.savez(os.path.join(folder, f'{name}.truth.npz'), tracks=scene['tracks'][0], occluded=scene['hidden'][0],
             query_points=queries)


def contact_sheet(path, textures, renderer, recipe, seed, clips, frames, columns=6, dots=24):
    """Rows of frames of `clips` clips with their tracks: full dots are visible, rings hidden."""
    import cv2
    rows = []
    for scene in held_out(textures, clips, frames, dots, seed, recipe):
        video = renderer.render(scene)[0].cpu().numpy()
        row = []
        for t in np.linspace(0, frames - 1, columns).round().astype(int):
            image = np.ascontiguousarray(video[t][..., ::-1])
            for n, (x, y) in enumerate(scene['tracks'][0][:, t]):
                colour = tuple(int(c) for c in cv2.cvtColor(np.uint8([[[n * 180 // dots, 255, 255]]]), 8 + 46)[0, 0])
                cv2.circle(image, (int(x), int(y)), 3, colour, 1 if scene['hidden'][0][n, t] else -1)
            row.append(image)
        rows.append(np.concatenate(row, 1))
    cv2.imwrite(path, np.concatenate(rows))


def write_set(folder, textures, renderer, clips=None):
    e = EVALUATION
    os.makedirs(folder, exist_ok=True)
    for i, scene in enumerate(held_out(textures, clips or e['clips'], e['frames'], e['queries'], e['seed'], e['recipe'])):
        write_clip(folder, f'clip{i:03d}', renderer.render(scene)[0].cpu().numpy(), scene)
    with open(os.path.join(folder, 'recipe.json'), 'w') as f:
        json.dump({**{k: v for k, v in e.items() if k != 'recipe'}, 'recipe': json.loads(e['recipe'].text())}, f, indent=1)


def measure_files(clips_folder, tracks_folder):
    """Track files NAME.tracks.npz (as our C program writes them) against a set written by write_set."""
    results = []
    for name in sorted(os.listdir(clips_folder)):
        if not name.endswith('.truth.npz'):
            continue
        stem = name[:-len('.truth.npz')]
        truth, ours = np.load(os.path.join(clips_folder, name)), np.load(os.path.join(tracks_folder, f'{stem}.tracks.npz'))
        results.append(tap_vid(ours['tracks'], ours['occluded'], truth['tracks'], truth['occluded'], truth['query_points']))
    return mean(results)
