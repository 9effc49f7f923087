"""The store's steps in Redis, as Lua: each is one that no other client comes between.

A job is a hash, its events are a list. Both stay until their retention ends, or until there is no room for
them; then what is counted of them goes with them, though Redis may have removed them already.
"""

from __future__ import annotations

from app.cluster.names import PREFIX
from app.jobs.store import EACH, EACH_EVENT

JOB = f"{PREFIX}:job:"
EVENTS = f"{PREFIX}:events:"
EQUAL = f"{PREFIX}:equal:"
"""+ key: the newest job whose answer may be that of equal questions."""

OPEN = f"{PREFIX}:open"
"""Sorted set of the jobs that have not ended, by the time of their acceptance."""

TURNS = f"{PREFIX}:turns"
"""Hash: when a job of each owner was last taken."""

BYTES = f"{PREFIX}:bytes"
"""Hash: how many bytes the jobs of each owner take."""

ENDED = f"{PREFIX}:ended:"
"""+ owner: sorted set of the owner's ended jobs, `job bytes`, by the time of their end."""

_NAMES = "\n".join(
    f"local {name} = '{value}'"
    for name, value in (
        ("JOB", JOB),
        ("EVENTS", EVENTS),
        ("EQUAL", EQUAL),
        ("OPEN", OPEN),
        ("TURNS", TURNS),
        ("BYTES", BYTES),
        ("ENDED", ENDED),
    )
)

_REPORT = """
local function report(job, kind, data)
  redis.call('RPUSH', EVENTS .. job, cjson.encode({kind, data}))
end
"""

# As app.jobs.tables.make_room does it.
_ROOM = """
local function count(owner, bytes)
  if redis.call('HINCRBY', BYTES, owner, bytes) <= 0 then redis.call('HDEL', BYTES, owner) end
end
local function forget(owner, member)
  local job, size = string.match(member, '^(%S+) (%d+)$')
  redis.call('DEL', JOB .. job, EVENTS .. job)
  redis.call('ZREM', ENDED .. owner, member)
  count(owner, -tonumber(size))
end
local function oldest(owner, but)
  local found = redis.call('ZRANGE', ENDED .. owner, 0, 1, 'WITHSCORES')
  for at = 1, #found, 2 do
    if string.match(found[at], '^%S+') ~= but then return found[at], tonumber(found[at + 1]) end
  end
end
local function forget_oldest(owners, but)
  local whose, which, when
  for _, owner in ipairs(owners) do
    local member, ended = oldest(owner, but)
    if member and (not when or ended < when) then whose, which, when = owner, member, ended end
  end
  if which then forget(whose, which) end
  return which
end
local function make_room(limit, share, owner, but, most)
  for gone = 0, most - 1 do
    local total, owners = 0, redis.call('HKEYS', BYTES)
    for _, each in ipairs(redis.call('HVALS', BYTES)) do total = total + tonumber(each) end
    local own = owner ~= '' and tonumber(redis.call('HGET', BYTES, owner) or 0) or 0
    local forgotten = own > share and forget_oldest({owner}, but)
      or total > limit and forget_oldest(owners, but)
    if not forgotten then return gone end
  end
  return most
end
"""

# facts: job, owner, most, share, now, limit, own (bytes of an owner), open, open_own (of open jobs); request
ADD = f"""{_NAMES}{_REPORT}{_ROOM}
local asked = cjson.decode(ARGV[1])
local ids = redis.call('ZRANGE', OPEN, 0, -1)
local jobs, bytes, own_bytes = 0, 0, 0
for _, id in ipairs(ids) do
  local found = redis.call('HMGET', JOB .. id, 'owner', 'size')
  local size = tonumber(found[2] or 0)
  bytes = bytes + size
  if asked.owner ~= '' and found[1] == asked.owner then jobs, own_bytes = jobs + 1, own_bytes + size end
end
if #ids >= asked.most or jobs >= asked.share then return 'many' end
local size = #ARGV[2] + {EACH}
if bytes + size > asked.open or asked.owner ~= '' and own_bytes + size > asked.open_own then return 'full' end
redis.call('HSET', JOB .. asked.job, 'owner', asked.owner, 'request', ARGV[2], 'status', 'queued',
  'lease', '0', 'service', '', 'attempts', '0', 'cancelled', '0', 'size', size)
redis.call('ZADD', OPEN, asked.now, asked.job)
count(asked.owner, size)
report(asked.job, 'queued', cjson.encode({{ahead = #ids, at = asked.now}}))
make_room(asked.limit, asked.own, asked.owner, '', 1e9)
return 'accepted'
"""

# facts: service, now, till, only (a job, or empty), but (jobs)
CLAIM = f"""{_NAMES}
local asked = cjson.decode(ARGV[1])
local far = asked.till + (asked.till - asked.now)
local first, turn
for _, id in ipairs(asked.only ~= '' and {{asked.only}} or redis.call('ZRANGE', OPEN, 0, -1)) do
  local found = redis.call('HMGET', JOB .. id, 'lease', 'owner')
  local lease = tonumber(found[1] or asked.now)
  if (lease < asked.now or lease > far) and not asked.but[id] and redis.call('ZSCORE', OPEN, id) then
    local last = math.min(tonumber(redis.call('HGET', TURNS, found[2]) or 0), asked.now)
    if not first or last < turn then first, turn = id, last end
  end
end
if not first then return false end
local job = JOB .. first
local attempts = redis.call('HINCRBY', job, 'attempts', 1)
redis.call('HSET', job, 'status', 'running', 'service', asked.service, 'lease', asked.till)
local found = redis.call('HMGET', job, 'owner', 'request', 'cancelled')
redis.call('HSET', TURNS, found[1], asked.now)
return {{first, found[1], found[2], attempts, found[3]}}
"""

RENEW = f"""{_NAMES}
local job = JOB .. ARGV[1]
if redis.call('HGET', job, 'service') ~= ARGV[2] or redis.call('HEXISTS', job, 'ended') == 1 then
  return false
end
redis.call('HSET', job, 'lease', ARGV[3])
return redis.call('HGET', job, 'cancelled')
"""

RELEASE = f"""{_NAMES}
local job = JOB .. ARGV[1]
if redis.call('HGET', job, 'service') == ARGV[2] and redis.call('HEXISTS', job, 'ended') == 0 then
  redis.call('HSET', job, 'status', 'queued', 'service', '', 'lease', '0')
  redis.call('HINCRBY', job, 'attempts', -1)
end
"""

TOLD = f"""{_NAMES}{_REPORT}
local job = JOB .. ARGV[1]
if redis.call('EXISTS', job) == 1 and redis.call('HEXISTS', job, 'ended') == 0 then
  report(ARGV[1], ARGV[2], ARGV[3])
end
"""

# facts: job, owner (only of what was no job), status, code, now, told, retention, key, limit, own; body
END = f"""{_NAMES}{_REPORT}{_ROOM}
local ending = cjson.decode(ARGV[1])
local job = JOB .. ending.job
local owner, before = ending.owner, 0
if not owner then
  if redis.call('EXISTS', job) == 0 or redis.call('HEXISTS', job, 'ended') == 1 then return 0 end
  local found = redis.call('HMGET', job, 'owner', 'size')
  owner, before = found[1], tonumber(found[2] or 0)
end
report(ending.job, 'done', ending.told)
local size = #ARGV[2] + {EACH}
for _, event in ipairs(redis.call('LRANGE', EVENTS .. ending.job, 0, -1)) do
  size = size + #event + {EACH_EVENT}
end
redis.call('HSET', job, 'owner', owner, 'status', ending.status, 'code', ending.code, 'body', ARGV[2],
  'ended', ending.now)
redis.call('HDEL', job, 'request', 'size')
redis.call('ZREM', OPEN, ending.job)
redis.call('ZADD', ENDED .. owner, ending.now, ending.job .. ' ' .. size)
count(owner, size - before)
redis.call('EXPIRE', job, ending.retention)
redis.call('EXPIRE', EVENTS .. ending.job, ending.retention)
if ending.key ~= '' then redis.call('SET', EQUAL .. ending.key, ending.job, 'EX', ending.retention) end
make_room(ending.limit, ending.own, owner, ending.job, 1e9)
return 1
"""

# facts: before, limit, own, most
PURGE = f"""{_NAMES}{_ROOM}
local asked = cjson.decode(ARGV[1])
local gone = 0
for _, owner in ipairs(redis.call('HKEYS', BYTES)) do
  local range = {{ENDED .. owner, '-inf', '(' .. asked.before, 'LIMIT', 0, asked.most - gone}}
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', unpack(range))) do
    forget(owner, member)
    gone = gone + 1
  end
  if gone >= asked.most then return gone end
end
return gone + make_room(asked.limit, asked.own, '', '', asked.most - gone)
"""
