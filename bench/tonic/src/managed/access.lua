-- Refuses reservations of these customers. The name is field 1 of a `hotel.ReservationRequest`.
local refused = {Mallory = true, Trudy = true}

-- The number that begins at a byte, and where the next thing begins.
local function varint(bytes, at)
  local value, scale = 0, 1
  while true do
    local byte = string.byte(bytes, at)
    if byte == nil then return nil, at end
    at = at + 1
    if byte < 128 then return value + byte * scale, at end
    value, scale = value + (byte - 128) * scale, scale * 128
  end
end

-- The name in a message behind gRPC's five bytes: the last one counts. nil: it is no message.
local function customer(bytes)
  local name, at = "", 6
  while at <= #bytes do
    local key, length
    key, at = varint(bytes, at)
    if key == nil then return nil end
    local kind = key % 8
    if kind == 0 then
      length, at = varint(bytes, at)
    elseif kind == 1 then
      at = at + 8
    elseif kind == 2 then
      length, at = varint(bytes, at)
      if length == nil then return nil end
      if key == 10 then name = string.sub(bytes, at, at + length - 1) end
      at = at + length
    elseif kind == 5 then
      at = at + 4
    else
      return nil
    end
  end
  return name
end

function envoy_on_request(handle)
  local body = handle:body()
  local name = customer(body:getBytes(0, body:length()))
  -- Envoy makes PERMISSION_DENIED of this status.
  if name == nil or refused[name] then handle:respond({[":status"] = "403"}, "refused") end
end
