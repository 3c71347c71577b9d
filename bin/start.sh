#!/bin/sh
# `npm start`: npm shows what it runs before anything else, so that is kept to a few words.

if [ ! -e src/gen/window/window.js ]; then
  echo 'phoneproof is not built here yet: npm ci' >&2
  exit 1
fi
# The pinned Node is one of the development tools.
if [ ! -e node_modules/.bin/node ] && ! node -e 'process.exit(+(parseInt(process.versions.node) < 24))'; then
  echo 'phoneproof needs Node 24 or newer, which npm ci installs with the development tools' >&2
  exit 1
fi
exec node --disable-sigusr1 --max-semi-space-size=16 src/start.ts "$@"
