"""Players: which environments are games, and what the engine learns of them."""

import pytest

from slipstream.core.errors import ConfigError
from slipstream.training.environments.environment import Part
from slipstream.training.environments.factory import get_game_class, make_environment
from slipstream.training.environments.parts import Players, opponent_names, short_name

MET = {"opponents": {"random": 1.0}, "evaluation": {"random": 1.0}}


class Weather(Part):
    """A part that nothing has."""


def test_only_games_have_players():
    assert [get_game_class(name) for name in ("cartpole", "gym:CartPole-v1", "no such game")] == [
        None
    ] * 3
    alone = make_environment("cartpole", {})
    assert alone.part(Players) is None and opponent_names(alone) == {}
    game = make_environment("tictactoe", {"self_play": MET})
    players = game.part(Players)
    assert players is game and game.part(Weather) is None
    assert players.names == {0: "random"} and players.deterministic_opponents == frozenset()
    open_seat = make_environment("tictactoe", {})
    assert open_seat.part(Players).for_training(None) == (open_seat, None)


def test_a_game_is_faced_and_answered_by_its_name():
    hockey, tictactoe = get_game_class("hockey"), get_game_class("tictactoe")
    assert (hockey.bots("hockey"), tictactoe.bots("tictactoe")) == (
        ["weak", "strong", "random", "idle"],
        ["random"],
    )
    faced = hockey.load_against("hockey", {"self_play": MET}, 1, "strong")
    assert faced.self_play is None and faced.spec.players == 1
    faced = tictactoe.load_against("tictactoe", {}, 0, "random")
    assert opponent_names(faced) == {0: "random"}
    with pytest.raises(ConfigError, match="unknown opponent"):
        tictactoe.load_against("tictactoe", {}, 0, "strong")
    answered = hockey.best_response_settings("hockey", "runs/mine", drawn=True)
    assert answered["self_play"]["evaluation"] == {"runs/mine": 1.0}
    assert not answered["self_play"]["deterministic"] and answered["side"] == "both"
    assert set(tictactoe.best_response_settings("tictactoe", "runs/mine", drawn=False)) == {
        "self_play"
    }
    assert tictactoe.past({}, None, {"results": None}) is None


def test_policies_have_short_names():
    assert short_name("runs/mine/best/member-000") == "mine/member-000"
    assert short_name("given/policy.onnx") == "policy"
