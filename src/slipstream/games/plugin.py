"""What games add to the engine; see `core/plugins.py`."""

environments = {"player": "slipstream.environments.self_play.environment:GameEnvironment"}
pages = {"game": "slipstream.report.game.page:game_page"}
