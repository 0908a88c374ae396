"""What the demonstration checkpoints were meant to reach, figure by figure."""

from __future__ import annotations

from dataclasses import asdict

from tests.demo.card import Figure


def wanted(name: str) -> dict[str, tuple[str, float]]:
    """Goals by the start of a figure's name."""
    induction = 0.7 if name == "demo-llama" else 0.75
    goals = {
        "previous token": (">=", 0.9),
        "induction": (">=", induction),
        "loss, second half": ("<=", 1.0 if name == "demo-llama" else 0.5),
        "next token": (">=", 0.9),
        "masked copy, ": (">=", 0.7),
        "masked copy accuracy": (">=", 0.9),
        "tokens per word": ("<=", 1.5),
    }
    choice, mass = (0.8, None) if name == "demo-bert" else (0.95, 0.5)
    for kind in ("gender", "animacy"):
        goals[f"{kind} coreference, forced choice"] = (">=", choice)
        if mass is not None:
            goals[f"{kind} coreference, mass"] = (">=", mass)
    if name == "demo-bert":
        goals["resting on [SEP]"] = (">=", 0.3)
    else:
        goals["resting on first token"] = (">=", 0.4)
    return goals


def judge(measured: Figure, goals: dict[str, tuple[str, float]]) -> Figure:
    for start, (sign, goal) in goals.items():
        if measured.name.startswith(start):
            reached = measured.value >= goal if sign == ">=" else measured.value <= goal
            return Figure(**(asdict(measured) | {"wanted": f"{sign} {goal}", "reached": reached}))
    return measured
