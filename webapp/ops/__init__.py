"""`/ops`: the live page for operators, without a build step and without content from other sites.

GET  /ops                  the page          webapp/ops/static/
GET  /ops/static/<name>    its parts
GET  /ops/events           server-sent events: `hello` with the last hour, then `now` every two seconds
GET  /ops/explain/<id>     the stages of one request
POST /ops/actions/<name>   says what it will do; with "confirm": true, does it
"""
