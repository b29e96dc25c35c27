#!/usr/bin/env python3
"""Held-out curves of several runs, one SVG: plot.py run-folder… > picture.svg"""
import json
import os
import sys

COLOURS = ["#1f6feb", "#d1242f", "#1a7f37", "#8250df"]
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 360, 190, 56, 14, 30, 30
PANELS = [("held-out accuracy of rewards", lambda m: m["eval_rewards/accuracies"]),
          ("held-out margin of rewards, dpo", lambda m: {True: m["eval_rewards/margins"]}["eval_log_odds_chosen" not in m]),
          ("held-out log odds of chosen, orpo", lambda m: m["eval_log_odds_chosen"]),
          ("lambda of orpo", lambda m: m["orpo_lambda"])]


def read(folder):
    with open(os.path.join(folder, "metrics.jsonl")) as lines:
        return [m for m in map(json.loads, lines) if m["type"] == "eval"]


def points(lines, value):
    found = []
    for line in lines:
        try:
            found.append((line["step"], value(line)))
        except KeyError:
            pass
    return found


def panel(index, title, curves):
    x0, y0 = (index % 2) * WIDTH, (index // 2) * HEIGHT
    every = [p for _, _, ps in curves for p in ps]
    if not every:
        return ""
    x_max = max(x for x, _ in every) or 1
    low, high = min(y for _, y in every), max(y for _, y in every)
    high = high if high > low else low + 1
    px = lambda x: x0 + LEFT + x / x_max * (WIDTH - LEFT - RIGHT)
    py = lambda y: y0 + HEIGHT - BOTTOM - (y - low) / (high - low) * (HEIGHT - TOP - BOTTOM)
    svg = f'<text x="{x0 + LEFT}" y="{y0 + 16}" font-weight="bold">{title}</text>'
    for i in range(3):
        y, x = low + (high - low) * i / 2, x_max * i / 2
        svg += f'<line x1="{x0 + LEFT}" x2="{x0 + WIDTH - RIGHT}" y1="{py(y):.1f}" y2="{py(y):.1f}" stroke="#ddd"/>'
        svg += f'<text x="{x0 + LEFT - 5}" y="{py(y) + 4:.1f}" text-anchor="end">{y:.3g}</text>'
        svg += f'<text x="{px(x):.1f}" y="{y0 + HEIGHT - 12}" text-anchor="middle">{x:.0f}</text>'
    for colour, _, ps in curves:
        line = " ".join(f"{px(x):.1f},{py(y):.1f}" for x, y in ps)
        svg += f'<polyline fill="none" stroke="{colour}" stroke-width="1.8" points="{line}"/>'
    return svg + "\n"


def main(folders):
    runs = [(COLOURS[i], os.path.basename(f.rstrip("/")), read(f)) for i, f in enumerate(folders)]
    body = ""
    for index, (title, value) in enumerate(PANELS):
        body += panel(index, title, [(colour, name, points(lines, value)) for colour, name, lines in runs])
    height = 2 * HEIGHT + 20
    for i, (colour, name, _) in enumerate(runs):
        body += f'<text x="{LEFT + 160 * i}" y="{height - 6}" fill="{colour}">{name}</text>'
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * WIDTH} {height}" width="{2 * WIDTH}" '
          f'height="{height}" font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>\n'
          f"{body}</svg>")


main(sys.argv[1:])
