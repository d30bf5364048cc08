"""Tabular learning written out literally: one stream, one component vector at a time, slow and hard to get wrong.

Every learner returns the weights (F, Z) after each step. Targets of a component are differences of ordinary targets of
V_z and V_{z−1}, where the library works on components. `phi` (S, F) are the features, the identity for a table.
"""

from dataclasses import dataclass

import numpy as np

import targets_literal


@dataclass
class Learner:
    gammas: tuple
    decays: tuple
    windows: tuple
    alpha: object  # step size of the n-th visit to a state, (Z,)
    phi: np.ndarray
    weights: np.ndarray
    visits: np.ndarray

    def values(self, s, weights=None):
        """V_z(s) of all scales."""
        return np.cumsum(self.phi[s] @ (self.weights if weights is None else weights))

    def rate(self, s):
        self.visits[s] += 1
        return self.alpha(self.visits[s])

    def errors(self, steps, t):
        """δ^z as differences of the TD errors of V_z and V_{z−1}."""
        own = self.values(steps.states[t])
        then = np.zeros_like(own) if steps.terminated[t] else self.values(steps.next_states[t])
        return np.diff(steps.rewards[t] + np.array(self.gammas) * then - own, prepend=0.0)

    def problem(self, steps, begin, end):
        """The steps as a call of a target function, bootstrapped from the weights of now."""
        part = slice(begin, end)
        then = np.where(steps.terminated[part, None], 0.0, self.phi[steps.next_states[part]] @ self.weights)
        return targets_literal.Problem(
            self.gammas,
            self.decays,
            self.windows,
            steps.rewards[part],
            self.phi[steps.states[part]] @ self.weights,
            then,
            steps.terminated[part],
            steps.truncated[part],
        )

    def move(self, s, goal):
        self.weights = self.weights + np.outer(self.phi[s], self.rate(s) * (goal - self.phi[s] @ self.weights))


def td0(learner, steps):
    for t, s in enumerate(steps.states):
        learner.weights = learner.weights + np.outer(learner.phi[s], learner.rate(s) * learner.errors(steps, t))
        yield learner.weights


def traces(learner, steps):
    """Every earlier step of the episode gets its share of the TD error of now."""
    past = []
    for t, s in enumerate(steps.states):
        past.append((t, s, learner.rate(s)))
        delta = learner.errors(steps, t)
        for i, state, rate in past:
            learner.weights = learner.weights + np.outer(
                learner.phi[state], rate * np.array(learner.decays) ** (t - i) * delta
            )
        if steps.terminated[t] or steps.truncated[t]:
            past = []
        yield learner.weights


def true_online(learner, steps):
    """The online λ-return: at every step all updates of the episode anew, with λ-returns that end now.

    Component z is an ordinary learner of discount γ_z, whose reward is (γ_z − γ_{z−1}) V_{z−1}(s') as it was when seen.
    """
    gammas, decays = np.array(learner.gammas), np.array(learner.decays)
    first, states, rates, rewards, bootstraps = learner.weights, [], [], [], []
    for t, s in enumerate(steps.states):
        then = np.zeros_like(gammas) if steps.terminated[t] else learner.phi[steps.next_states[t]] @ learner.weights
        below = np.concatenate([[0.0], np.cumsum(then)[:-1]])
        states.append(s)
        rates.append(learner.rate(s))
        rewards.append(np.where(gammas == gammas[0], steps.rewards[t], np.diff(gammas, prepend=0.0) * below))
        bootstraps.append(then)
        learner.weights = first
        for k in range(len(states)):
            lambdas = np.divide(decays, gammas, out=np.zeros_like(decays), where=gammas > 0)
            goal, total = np.zeros_like(gammas), np.zeros_like(gammas)
            for n in range(1, len(states) - k + 1):
                total = total + gammas ** (n - 1) * rewards[k + n - 1]
                n_step = total + gammas**n * bootstraps[k + n - 1]
                last = n == len(states) - k
                goal = goal + (1.0 if last else 1 - lambdas) * lambdas ** (n - 1) * n_step
            own = learner.phi[states[k]] @ learner.weights
            learner.weights = learner.weights + np.outer(learner.phi[states[k]], rates[k] * (goal - own))
        if steps.terminated[t] or steps.truncated[t]:
            first, states, rates, rewards, bootstraps = learner.weights, [], [], [], []
        yield learner.weights


def offline(targets, chunk):
    """Towards the targets of a whole episode, or of as many steps as `chunk`."""

    def learn(learner, steps):
        begin = 0
        for t in range(len(steps.states)):
            ended = steps.terminated[t] or steps.truncated[t]
            if ended or t + 1 == len(steps.states) or t + 1 - begin == chunk:
                goals = targets(learner.problem(steps, begin, t + 1))
                for i in range(begin, t + 1):
                    learner.move(steps.states[i], goals[i - begin])
                begin = t + 1
            yield learner.weights

    return learn


def n_step(learner, steps):
    """Algorithm 1: a state moves when K steps have followed it, or at the episode's end."""
    begin, moved, longest = 0, 0, max(learner.windows)
    for t in range(len(steps.states)):
        ended = steps.terminated[t] or steps.truncated[t]
        while moved < (t + 1 if ended else t + 2 - longest) and moved >= begin:
            goal = targets_literal.n_step_targets(learner.problem(steps, moved, t + 1))[0]
            learner.move(steps.states[moved], goal)
            moved += 1
        if ended:
            begin = moved = t + 1
        yield learner.weights


LEARNERS = {
    "td0": td0,
    "n_step": n_step,
    "traces": traces,
    "true_online": true_online,
    "lambda_return": offline(lambda problem: targets_literal.lambda_targets(problem, "bootstrap"), 5),
    "lambda_difference": offline(targets_literal.lambda_targets, 5),
}
