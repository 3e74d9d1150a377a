#!/usr/bin/env bash
# grpcurl, which is grpc-go with other authorities than the kubelet's, as a client of a registration
# socket. One process makes one call.
set -uo pipefail
grpcurl=$1 socket=$2 name=$3 endpoint=$4 protos=$5
here=$(dirname "$0")
version=$(go version -m "$grpcurl" | awk '$1 == "mod" { print substr($3, 2) }')

service=pluginregistration.Registration
info='{"type":"CSIPlugin","name":"'$name'","endpoint":"'$endpoint'","supportedVersions":["1.0.0"]}'
registered='{"plugin_registered":true}'

# Makes a call by the protocol as it is: METHOD, the request, further flags.
call() {
  "$grpcurl" -plaintext -unix -max-time 10 -import-path "$protos" \
    -proto pluginregistration/v1/registration.proto -d "$2" "${@:3}" "$socket" "$service/$1"
}

# Expects a text from the rest, blanks aside.
answers() {
  local answer
  answer=$("${@:2}" 2>&1 | tr -d ' \n')
  [ "$answer" = "$1" ] || { echo "$answer" && false; }
}

register() {
  answers "$info" call GetInfo '{}' "$@" &&
    answers '{}' call NotifyRegistrationStatus "$registered" "$@"
}

# The same, to a target that is a URL.
register_at() {
  local url=("$grpcurl" -plaintext -max-time 10 -import-path "$protos"
    -proto pluginregistration/v1/registration.proto)
  answers "$info" "${url[@]}" "$1" "$service/GetInfo" &&
    answers '{}' "${url[@]}" -d "$registered" "$1" "$service/NotifyRegistrationStatus"
}

fresh_channels() {
  for _ in 1 2 3 4 5; do register || return; done
}

deadlines() {
  for seconds in 5 3600 1000000; do register -max-time "$seconds" || return; done
}

# Expects a status: CODE, the beginning of its text, the rest makes the call.
refused() {
  local answer
  answer=$("${@:3}" 2>&1)
  [[ $answer == *"Code: $1"*"Message: $2"* ]] || { echo "$answer" && false; }
}

foreign() {
  "$grpcurl" -plaintext -unix -max-time 10 -import-path "$here" -proto foreign.proto \
    -d "$2" "$socket" "pluginregistration.$1"
}

text() { head -c "$1" /dev/zero | tr '\0' x; }

# Makes a call with a message of so many octets, 7 of which are not the text's.
sized() {
  { printf '{"plugin_registered":true,"error":"'
    text $(($1 - 7))
    printf '"}'; } | call NotifyRegistrationStatus @
}

row() {
  printf 'interop\tgrpcurl %s\t%s\t%s\t%s%s\n' "$version" "$1" "$2" "$3" "${4:+$'\t'$4}"
}

# SCENARIO, the rest runs it and says what was wrong.
scenario() {
  local since=$EPOCHREALTIME outcome=ok reason
  reason=$("${@:2}") || outcome=FAILED
  local seconds
  seconds=$(awk "BEGIN { printf \"%.3f\", $EPOCHREALTIME - $since }")
  row "$1" "$outcome" "$seconds" "$(tr -s '[:space:]' ' ' <<< "$reason" | sed 's/ $//')"
}

skipped() { row "$1" skipped 0.000 "$2"; }

encoded=${socket//\//%2F}
single='grpcurl makes one call per channel'

skipped 'one channel' "$single"
scenario 'fresh channels' fresh_channels
scenario 'target unix:path' register_at "unix:$socket"
scenario 'target unix:///path' register_at "unix://$socket"
scenario 'authority of the raw path' register -authority "$socket"
scenario 'authority of the percent-encoded path' register -authority "$encoded"
skipped 'authority empty' 'means the default to grpcurl'
scenario 'authority localhost' register -authority localhost
scenario 'authority a b' register -authority 'a b'
scenario 'authority [::1' register -authority '[::1'
scenario 'authority %' register -authority %
scenario 'authority é' register -authority é
scenario 'authority of 200 characters' register -authority "$(text 200)"
scenario metadata register -H 'x-text: a' -H 'x-text: b' -H "x-long: $(text 4096)" \
  -H 'x-bin: AP8='
scenario deadlines deadlines
skipped '100 calls at once' "$single"
skipped gzip 'grpcurl does not compress'
scenario 'unknown method' refused Unimplemented \
  'unknown method Nope for service pluginregistration.Registration' foreign Registration/Nope '{}'
scenario 'unknown service' refused Unimplemented 'unknown service pluginregistration.Nope' \
  foreign Nope/Nope '{}'
skipped 'malformed method' 'grpcurl checks the name'
skipped 'not protobuf' 'grpcurl sends messages only'
scenario 'not UTF-8' refused Internal '' \
  foreign Registration/NotifyRegistrationStatus '{"plugin_registered":true,"error":"/w=="}'
scenario '4 MiB' answers '{}' sized $((4 << 20))
scenario '4 MiB + 1' refused ResourceExhausted 'grpc: received message larger than max (' \
  sized $(((4 << 20) + 1))
