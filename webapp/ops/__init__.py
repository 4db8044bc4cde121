"""`/ops`: the live page for whoever is on call, without a build step and without anything from elsewhere.

GET  /ops                  the page          webapp/ops/static/
GET  /ops/static/<name>    its parts
GET  /ops/events           server-sent events: `hello` with the last hour, then `now` every two seconds
GET  /ops/explain/<id>     where one request's time went
POST /ops/actions/<name>   says what it will do; with "confirm": true, does it
"""
