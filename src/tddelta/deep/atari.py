"""Atari games on ale-py's vectorised environment: names, and protocols as data."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from tddelta._plain import closest, is_number, whole
from tddelta.deep.host import HostEnvironment, from_space_of
from tddelta.errors import ConfigError, MissingExtra

_ROMS = (
    "adventure air_raid alien amidar assault asterix asteroids atlantis atlantis2 backgammon bank_heist basic_math "
    "battle_zone beam_rider berzerk blackjack bowling boxing breakout carnival casino centipede chopper_command "
    "combat crazy_climber crossbow darkchambers defender demon_attack donkey_kong double_dunk earthworld "
    "elevator_action enduro entombed et fishing_derby flag_capture freeway frogger frostbite galaxian gopher gravitar "
    "hangman haunted_house hero human_cannonball ice_hockey jamesbond journey_escape joust kaboom kangaroo "
    "keystone_kapers king_kong klax koolaid krull kung_fu_master laser_gates lost_luggage mario_bros maze_craze "
    "miniature_golf montezuma_revenge mr_do ms_pacman name_this_game othello pacman phoenix pitfall pitfall2 pong "
    "pooyan private_eye qbert riverraid road_runner robotank seaquest sir_lancelot skiing solaris space_invaders "
    "space_war star_gunner superman surround tennis tetris tic_tac_toe_3d time_pilot trondead turmoil tutankham "
    "up_n_down venture video_checkers video_chess video_cube video_pinball warlords wizard_of_wor word_zapper "
    "yars_revenge zaxxon"
)
GAMES: Mapping[str, str] = {rom.title().replace("_", ""): rom for rom in _ROMS.split()}
"""Names of games, as in MsPacman, and of their ROMs in ale-py's wheel."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Protocol:
    """Rules by which a game is played and shown. Every field is an option of the environment.

    Attributes:
        frame_skip: Frames for which an action is repeated: one step.
        repeat_action_probability: Of repeating the action before instead ("sticky actions"), at every frame.
        full_action_space: All 18 actions instead of those that the game knows.
        noop_max: An episode starts with fewer than so many random no-ops; 0 for none.
        fire_reset: Press FIRE once at the start, in games that wait for it.
        life_loss: The loss of a life is terminal for the learner, while the game goes on. Episodes and scores are
            those of whole games in any case.
        max_pooling: An observation is the maximum over the last two frames, since some sprites flicker.
        height: Pixels.
        width: Pixels.
        grey: Grey instead of colours.
        stack: Observations that make one, oldest first; before the first there are zeros.
        max_frames: Frames after which a game is truncated.
    """

    frame_skip: int = 4
    repeat_action_probability: float = 0.0
    full_action_space: bool = False
    noop_max: int = 30
    fire_reset: bool = True
    life_loss: bool = True
    max_pooling: bool = True
    height: int = 84
    width: int = 84
    grey: bool = True
    stack: int = 4
    max_frames: int = 108_000


PROTOCOLS: Mapping[str, Protocol] = {
    "classic": Protocol(),
    "machado": Protocol(repeat_action_probability=0.25, noop_max=0, fire_reset=False, life_loss=False),
}
"""Protocols by name. "classic": that of the paper, and of the ids NoFrameskip-v4. "machado": random by sticky actions,
no knowledge of lives, as the ids ALE/…-v5 have it (Machado et al. 2018, who also use all 18 actions)."""

_BOUNDS = {
    "frame_skip": (1, 1000),
    "noop_max": (0, 10_000),
    "height": (36, 1000),
    "width": (36, 1000),
    "stack": (1, 100),
    "max_frames": (1, 2**31 - 1),
}
WHOLE = ("threads", *_BOUNDS)
"""Options that are whole numbers."""


def means(name: str) -> bool:
    """Tell names that are meant to be of Atari games."""
    return name in GAMES or name.startswith("ALE/") or ("NoFrameskip-" in name and ":" not in name)


def from_name(name: str, options: Mapping[str, Any]) -> HostEnvironment:
    """An Atari game.

    Args:
        name: Qbert, or QbertNoFrameskip-v4, which is the same; or ALE/Qbert-v5, whose protocol is "machado".
        options: `protocol`, "classic" or "machado"; any field of `Protocol` in its place; and `threads`, which step
            the emulators, by default as many as there are cores, and which change no number.

    Raises:
        ConfigError: If there is no such game, or an option is unknown or out of range.
        MissingExtra: If ale-py is not installed.
    """
    game, meant = _parsed(name)
    given = dict(options)
    threads = whole("threads", given.pop("threads", 0), 0, most=1000)
    chosen = given.pop("protocol", meant)
    if chosen not in PROTOCOLS:
        raise ConfigError(f"protocol must be one of {', '.join(PROTOCOLS)}; got {chosen!r}")
    fields = tuple(field.name for field in dataclasses.fields(Protocol))
    for option in given:
        if option not in fields:
            raise ConfigError(f"Atari has no option {option!r}: {closest(option, ('protocol', 'threads', *fields))}")
    protocol = dataclasses.replace(PROTOCOLS[chosen], **given)
    _check(protocol)
    _check_players(game)
    make = functools.partial(_vector, GAMES[game], protocol, threads)
    return from_space_of(
        make(1),
        game if meant == "classic" else f"{game}-v5",
        make,
        description={"game": game, "rom": GAMES[game], "protocol": chosen, **dataclasses.asdict(protocol)},
        rom=GAMES[game],
        lives=protocol.life_loss,
        overlaps=True,
        time_limit=-(-protocol.max_frames // protocol.frame_skip),
    )


def _parsed(name: str) -> tuple[str, str]:
    """The game, and the protocol that the form of the name means."""
    if name.startswith("ALE/"):
        game, version, meant = name.removeprefix("ALE/").removesuffix("-v5"), name.endswith("-v5"), "machado"
    else:
        game, version = name.removesuffix("NoFrameskip-v4"), name.endswith("NoFrameskip-v4") or name in GAMES
        meant = "classic"
    if not version:
        raise ConfigError(
            f"Atari game {name!r} is of no version that is known here: name it as Qbert, QbertNoFrameskip-v4 or "
            "ALE/Qbert-v5, and what the id meant by options, such as repeat_action_probability"
        )
    if game not in GAMES:
        raise ConfigError(f"unknown Atari game {game!r}: {closest(game, tuple(GAMES))}")
    return game, meant


def _check(protocol: Protocol) -> None:
    for field in dataclasses.fields(Protocol):
        value = getattr(protocol, field.name)
        if field.name in _BOUNDS:
            whole(field.name, value, *_BOUNDS[field.name])
        elif field.type is bool and not isinstance(value, bool):
            raise ConfigError(f"{field.name} must be True or False; got {value!r}")
    sticky: Any = protocol.repeat_action_probability
    if not is_number(sticky) or not 0 <= sticky < 1:
        raise ConfigError(f"repeat_action_probability must be in [0, 1); got {sticky!r}")


def _check_players(game: str) -> None:
    """Refuse games for two players, for which the emulator would end the whole process."""
    try:
        import ale_py.vector_env  # noqa: F401  (what `_vector` needs)
        from ale_py import ALEInterface, roms
    except ImportError as error:
        raise MissingExtra('Atari games need ale-py: pip install "tddelta[atari]"') from error
    if ALEInterface.isSupportedROM(str(roms.get_rom_path(GAMES[game]))) is None:
        raise ConfigError(f"{game} is for two players, and ale-py does not play it with one: name another game")


def _vector(rom: str, protocol: Protocol, threads: int, count: int) -> Any:
    from ale_py.vector_env import AtariVectorEnv

    return AtariVectorEnv(
        rom,
        count,
        num_threads=threads,
        max_num_frames_per_episode=protocol.max_frames,
        repeat_action_probability=protocol.repeat_action_probability,
        full_action_space=protocol.full_action_space,
        autoreset_mode="SameStep",
        img_height=protocol.height,
        img_width=protocol.width,
        grayscale=protocol.grey,
        stack_num=protocol.stack,
        frameskip=protocol.frame_skip,
        maxpool=protocol.max_pooling,
        noop_max=protocol.noop_max,
        use_fire_reset=protocol.fire_reset,
        # episodic_life would start the game anew at every life.
        episodic_life=False,
        life_loss_info=protocol.life_loss,
        # The learner takes the sign itself: the score is made of what the game gives.
        reward_clipping=False,
    )
