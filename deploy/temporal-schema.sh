#!/bin/sh
# Creates Temporal's two databases if they are missing, and upgrades their schemas to the version of
# this image. Every step is idempotent, so each `up` may run it.
# The tool itself reads SQL_PASSWORD from the environment.
set -eu

schema=/etc/temporal/schema/postgresql/v12

sql_tool() {
    temporal-sql-tool --plugin postgres12 --ep "$SQL_HOST" -p 5432 -u "$SQL_USER" "$@"
}

prepare() {
    sql_tool --db "$1" create
    sql_tool --db "$1" setup-schema -v 0.0
    sql_tool --db "$1" update-schema -d "$schema/$2/versioned"
}

prepare temporal temporal
prepare temporal_visibility visibility
