"""Who is asking. Both lanes go through the same `Identity` before any handler runs (`webapp.app.answered`).

Call ──Authorization──▶ Identity ──▶ Caller (key, owner, tier, limits)
                                 └ refused: 401, or 403 for a known caller at an operator's endpoint
"""
