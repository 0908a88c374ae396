"""Train the three small demonstration checkpoints from the generated story language.

python -m tests.demo.train demo-gpt2 --out out --seed 0
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from tests.demo.rows import IGNORE, Rows
from tests.demo.starts import build_model
from tests.demo.vocabulary import build_tokenizer


@dataclass(frozen=True)
class Recipe:
    """How one checkpoint is trained; shares are of the rows of a batch."""

    family: str
    steps: int
    lr: float
    batch: int = 16
    random_share_start: float = 0.8
    random_share_end: float = 0.2
    random_from: float = 0.12  # fraction of the steps before which the share stays at its start
    random_until: float = 0.25  # fraction of the steps after which the share stays at its end
    rest_from: float = 0.5  # fraction of the steps after which attention that does not rest costs
    rest_cost: float = 0.05  # nats for a head and row without any weight on the resting token
    hold_until: float = 0.3  # fraction of the steps for which what starts set is held
    warmup: float = 0.04
    lr_floor: float = 0.02
    weight_decay: float = 0.01


RECIPES = {
    "demo-gpt2": Recipe("gpt2", steps=2400, lr=1e-3, rest_from=0.6),
    "demo-llama": Recipe("llama", steps=1600, lr=8e-4),
    "demo-bert": Recipe("bert", steps=2400, lr=6e-4, random_share_end=0.35),
}


def learning_rate(recipe: Recipe, step: int) -> float:
    """Linear warm-up, then a cosine down to the floor, as a factor of the peak."""
    done = step / recipe.steps
    if done < recipe.warmup:
        return done / recipe.warmup
    phase = (done - recipe.warmup) / (1 - recipe.warmup)
    return recipe.lr_floor + (1 - recipe.lr_floor) * 0.5 * (1 + math.cos(math.pi * phase))


def save(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    folder: Path,
    facts: dict[str, object],
) -> None:
    """Float16 weights, a config that loads them as float32, the tokenizer and the facts."""
    folder.mkdir(parents=True, exist_ok=True)
    copy.deepcopy(model).half().save_pretrained(folder)
    config_path = folder / "config.json"
    config = json.loads(config_path.read_text())
    config["dtype"] = "float32"
    config_path.write_text(json.dumps(config, indent=2) + "\n")
    tokenizer.save_pretrained(folder)
    tokenizer_path = folder / "tokenizer_config.json"
    settings = json.loads(tokenizer_path.read_text())
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"  # known to versions 4 and 5
    tokenizer_path.write_text(json.dumps(settings, indent=2) + "\n")
    (folder / "training.json").write_text(json.dumps(facts, indent=2) + "\n")


def train(name: str, out: Path, seed: int, recipe: Recipe) -> None:
    """Train one checkpoint and write it to `out / name`."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    tokenizer = build_tokenizer(recipe.family)
    rows = Rows(tokenizer, seed)
    model, held = build_model(recipe.family, tokenizer)
    causal = recipe.family != "bert"
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.lr, betas=(0.9, 0.98), weight_decay=recipe.weight_decay
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: learning_rate(recipe, step)
    )
    print(f"{name}: {model.num_parameters()} parameters, {len(tokenizer)} tokens, {asdict(recipe)}")
    start = time.process_time()
    to_logits = model.lm_head if causal else model.cls
    sums = {"random": torch.zeros(2), "story": torch.zeros(2)}

    def facts(step: int) -> dict[str, object]:
        return {
            "name": name, "seed": seed, "steps_done": step,
            "cpu_seconds": round(time.process_time() - start),
            "n_parameters": model.num_parameters(), "recipe": asdict(recipe),
        }  # fmt: skip

    for step in range(recipe.steps):
        done = step / recipe.steps
        along = (done - recipe.random_from) / (recipe.random_until - recipe.random_from)
        along = min(1.0, max(0.0, along))
        share = recipe.random_share_start * (1 - along) + recipe.random_share_end * along
        ids, labels, n_random = rows.batch(recipe.batch, share)
        resting = done >= recipe.rest_from
        model.set_attn_implementation("eager" if resting else "sdpa")
        output = model.base_model(input_ids=ids, output_attentions=resting)
        hidden = output.last_hidden_state  # (B, T, C)
        if causal:
            hidden, labels = hidden[:, :-1], labels[:, 1:]
        known = labels != IGNORE
        losses = cross_entropy(to_logits(hidden[known]), labels[known], reduction="none")
        loss = losses.mean()
        if resting:
            # Layer 0 keeps its positions; later heads rest unless they are needed.
            weights = torch.stack(output.attentions[1:])  # (L - 1, B, H, T, S)
            loss = loss + recipe.rest_cost * (1 - weights[..., 0 if causal else -1].mean())
        optimizer.zero_grad()
        loss.backward()
        if done < recipe.hold_until:
            for weight, part in held:
                weight.grad[part] = 0.0
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        random_rows = (torch.arange(len(ids)) < n_random)[:, None].expand_as(known)[known]
        for key, rows_of_kind in (("random", random_rows), ("story", ~random_rows)):
            sums[key] += torch.tensor([losses.detach()[rows_of_kind].sum(), rows_of_kind.sum()])
        if (step + 1) % 100 == 0:
            means = " ".join(f"{key} {total / max(1, n):.3f}" for key, (total, n) in sums.items())
            print(f"{step + 1} {time.process_time() - start:.0f}s {means}", flush=True)
            sums = {key: torch.zeros(2) for key in sums}
        if (step + 1) % 500 == 0 or step + 1 == recipe.steps:
            save(model, tokenizer, out / name, facts(step + 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=RECIPES)
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int)
    args = parser.parse_args()
    recipe = RECIPES[args.name]
    if args.steps:
        recipe = Recipe(**(asdict(recipe) | {"steps": args.steps}))
    train(args.name, args.out, args.seed, recipe)


if __name__ == "__main__":
    main()
