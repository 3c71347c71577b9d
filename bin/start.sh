#!/bin/sh
# `npm start`: npm prints the command it runs, so package.json keeps it short and the details are here.

# Through a link, too.
bin=$(dirname -- "$(readlink -f -- "$0" || printf %s "$0")")
if [ ! -e "$bin/../src/gen/window/window.js" ]; then
  echo 'phoneproof is not built yet: run npm ci' >&2
  exit 1
fi
# The pinned Node is a development dependency.
if [ ! -e "$bin/../node_modules/.bin/node" ] && ! node -e 'process.exit(+(parseInt(process.versions.node) < 24))'; then
  echo 'phoneproof needs Node 24 or newer, which npm ci installs with the development tools' >&2
  exit 1
fi
# npm has done so; without npm, the machine's Node may be an older one.
PATH=$bin/../node_modules/.bin:$PATH
exec node --disable-sigusr1 --max-semi-space-size=16 "$bin/start.mjs" "$@"
