#!/bin/sh
# Creates the namespace and Everlong's search attributes. Existing ones are not changed, so each `up`
# may run it. The CLI reads TEMPORAL_ADDRESS from the environment.
set -eu

attempts_max=30

# Parts of the cluster do not know a new server or a new namespace for up to 10 s: 30 attempts, 2 s
# apart, give it a minute.
retry() {
    attempt=1
    until "$@"; do
        if [ "$attempt" -ge "$attempts_max" ]; then
            echo "temporal-setup: gave up after $attempts_max attempts: $*" >&2
            return 1
        fi
        attempt=$((attempt + 1))
        sleep 2
    done
}

ensure_namespace() {
    temporal operator namespace describe --namespace "$TEMPORAL_NAMESPACE" >/dev/null 2>&1 ||
        temporal operator namespace create --namespace "$TEMPORAL_NAMESPACE" --retention 168h
}

# SQL visibility has a fixed number of columns for each type (10 Keyword, 3 Int, 3 Double, 3 Datetime, 3
# KeywordList), and every namespace maps its own names onto them.
ensure_search_attributes() {
    temporal operator search-attribute create --namespace "$TEMPORAL_NAMESPACE" \
        --name EverlongAgent --type Keyword \
        --name EverlongStatus --type Keyword \
        --name EverlongReason --type Keyword \
        --name EverlongStateBytes --type Int \
        --name EverlongGrowthBytesPerHour --type Double \
        --name EverlongPendingApprovals --type Int \
        --name EverlongAskedAt --type Datetime \
        --name EverlongLastResumeMs --type Double
}

# Optional: without the first, threads take no labels; without the second, forks are not listed.
ensure_optional() {
    temporal operator search-attribute create --namespace "$TEMPORAL_NAMESPACE" \
        --name EverlongLabels --type KeywordList ||
        echo "EverlongLabels was not created: threads take no labels" >&2
    temporal operator search-attribute create --namespace "$TEMPORAL_NAMESPACE" \
        --name EverlongForkOf --type Keyword ||
        echo "EverlongForkOf was not created: the forks of a thread are not listed" >&2
}

retry temporal operator cluster health
retry ensure_namespace
retry ensure_search_attributes
ensure_optional
