#!/bin/bash
# Whether `dimmer run --auto` ever costs: five programs under it, and without it, in turn, until the
# interval of the gain is narrower than 2 % (docs/bench.md, `dimmer bench dev auto`).
#
#   contrib/auto.sh                      # all five
#   contrib/auto.sh nginx dgemm          # these
#   DIMMER=target/release/dimmer ROUNDS=20 SECONDS_EACH=5 contrib/auto.sh x265
#   WARM_UP=0 contrib/auto.sh nginx       # counts the learning, too
#
# A run is loaded for WARM_UP seconds (by default 5), in which --auto learns, and then measured for
# SECONDS_EACH (8).
#
# A model of a processor whose clock wide code lowers (MODEL, by default i9-7940x) chooses the
# functions whose calls --auto may move, so there is something to try also where nothing gains. Runs
# know nothing of each other: that model is not this machine's, so what earlier runs would conclude
# from it about narrower code says nothing here.
#
# Needs, as Debian packages: nginx-light openssl wrk, x265 ffmpeg, gcc libopenblas-dev, memcached
# libmemcached-tools, mariadb-server. What is not there is skipped.
set -eu

DIMMER=${DIMMER:-dimmer}
ROUNDS=${ROUNDS:-100}
SECONDS_EACH=${SECONDS_EACH:-8}
WARM_UP=${WARM_UP:-5}
MODEL=${MODEL:-i9-7940x}
PORT=${PORT:-17411}
ALL='nginx x265 dgemm memcached mariadb'

has() {
    for one; do
        command -v "$one" >/dev/null || { echo "skipped: there is no $one"; return 1; }
    done
}

# Waits until a server listens, for up to 20 s.
listens() {
    for _ in $(seq 200); do
        if (exec 3<>"/dev/tcp/127.0.0.1/$PORT") 2>/dev/null; then return; fi
        sleep 0.1
    done
    return 1
}

# What is made once for all runs. Returns 3 if something is not there.
prepare() {
    case $1 in
    nginx)
        has nginx wrk openssl || return 3
        head -c 100000 /dev/urandom >"$DIR/file"
        openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost -days 2 \
            -keyout "$DIR/key" -out "$DIR/certificate" 2>/dev/null || return 1
        cat >"$DIR/nginx.conf" <<END
daemon off;
master_process off;
pid $DIR/nginx.pid;
error_log /dev/null;
events {}
http {
    access_log off;
    server {
        listen 127.0.0.1:$PORT ssl;
        ssl_certificate $DIR/certificate;
        ssl_certificate_key $DIR/key;
        ssl_protocols TLSv1.3;
        ssl_conf_command Ciphersuites TLS_CHACHA20_POLY1305_SHA256;
        root $DIR;
    }
}
END
        ;;
    x265)
        has x265 ffmpeg || return 3
        # A core encodes some two seconds of it in one.
        ffmpeg -nostdin -loglevel error -f lavfi -i testsrc2=size=640x360:rate=25 \
            -t $(((WARM_UP + SECONDS_EACH) * $(nproc) * 2)) \
            -pix_fmt yuv420p "$DIR/clip.y4m" || return 1
        ;;
    dgemm)
        has gcc || return 3
        cat >"$DIR/dgemm.c" <<END
#include <stdio.h>
#include <time.h>
void dgemm_(const char *, const char *, const int *, const int *, const int *, const double *,
            const double *, const int *, const double *, const int *, const double *, double *,
            const int *);
enum { SIZE = 256 };
static double a[SIZE * SIZE], b[SIZE * SIZE], c[SIZE * SIZE];
static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}
int main(void) {
    const int size = SIZE;
    const double one = 1, zero = 0;
    for (int at = 0; at < SIZE * SIZE; at++)
        a[at] = b[at] = at % 7;
    /* The first pass is the warm-up. */
    const double seconds[] = {$WARM_UP, $SECONDS_EACH};
    double speed = 0;
    for (int pass = 0; pass < 2; pass++) {
        const double start = now();
        long products = 0;
        for (; now() < start + seconds[pass]; products++)
            dgemm_("N", "N", &size, &size, &size, &one, a, &size, b, &size, &zero, c, &size);
        speed = products / (now() - start);
    }
    printf("%f\n", speed);
}
END
        library=$(ldconfig -p | sed -n 's/.*libopenblas\.so\.0 .*=> //p' | head -n 1)
        gcc -O2 -o "$DIR/dgemm" "$DIR/dgemm.c" "${library:--lopenblas}" 2>/dev/null ||
            { echo "skipped: there is no libopenblas"; return 3; }
        ;;
    memcached) has memcached memcaslap || return 3 ;;
    mariadb)
        has mariadbd mariadb-install-db mariadb-slap || return 3
        mariadb-install-db --no-defaults --user="$(id -un)" --datadir="$DIR/data" \
            --auth-root-authentication-method=normal >/dev/null || return 1
        # As many queries as take a second here.
        QUERIES=1000
        QUERIES=$(DIMMER_AUTO='' WARM_UP=0 SECONDS_EACH=1 load mariadb | awk '{ print int($1) }')
        test "${QUERIES:-0}" -gt 0 || return 1
        ;;
    *) echo "no program \`$1\`; expected some of: $ALL" >&2; exit 2 ;;
    esac
}

# A run: starts the program behind the words in $DIMMER_AUTO, and prints what it did a second.
load() {
    server=
    trap 'test -z "$server" || { kill "$server" && wait "$server"; } 2>/dev/null || true' EXIT
    export XDG_CACHE_HOME="$DIR/cache-$$" DIMMER_SOCKET="$DIR/none"
    case $1 in
    nginx)
        $DIMMER_AUTO nginx -p "$DIR" -c "$DIR/nginx.conf" &
        server=$!
        listens
        for seconds in $WARM_UP $SECONDS_EACH; do
            test "$seconds" = 0 ||
                wrk -t 1 -c 8 -d "${seconds}s" "https://127.0.0.1:$PORT/file" |
                sed -n 's/^Requests.sec: *//p'
        done | tail -n 1
        ;;
    x265)
        # How fast it takes the clip, from the end of the warm-up on.
        size=$(stat -c %s "$DIR/clip.y4m")
        first=$((size / (WARM_UP + SECONDS_EACH) * WARM_UP))
        {
            head -c "$first"
            date +%s.%N >&3
            cat
            date +%s.%N >&3
        } 3>"$DIR/times" <"$DIR/clip.y4m" |
            $DIMMER_AUTO x265 --asm avx512 --preset fast --no-progress --y4m -o /dev/null --input - \
                2>/dev/null
        awk -v bytes=$((size - first)) 'NR == 1 { from = $1 } END { print bytes / 1e6 / ($1 - from) }' \
            "$DIR/times"
        ;;
    dgemm) OPENBLAS_NUM_THREADS=1 $DIMMER_AUTO "$DIR/dgemm" ;;
    memcached)
        $DIMMER_AUTO memcached -u "$(id -un)" -l 127.0.0.1 -p "$PORT" -t 1 &
        server=$!
        listens
        for seconds in $WARM_UP $SECONDS_EACH; do
            test "$seconds" = 0 ||
                memcaslap -s "127.0.0.1:$PORT" -t "${seconds}s" -T 1 -c 8 |
                sed -n 's/.*TPS: \([0-9]*\).*/\1/p'
        done | tail -n 1
        ;;
    mariadb)
        $DIMMER_AUTO mariadbd --no-defaults --user="$(id -un)" --datadir="$DIR/data" \
            --socket="$DIR/socket" --bind-address=127.0.0.1 --port="$PORT" \
            --skip-log-bin 2>/dev/null &
        server=$!
        listens
        for seconds in $WARM_UP $SECONDS_EACH; do
            queries=$((QUERIES * seconds))
            test "$queries" = 0 ||
                mariadb-slap --no-defaults --user=root --socket="$DIR/socket" --concurrency=4 \
                    --auto-generate-sql --number-of-queries="$queries" |
                awk -v queries="$queries" '/Average number of seconds/ { print queries / $(NF - 1) }'
        done | tail -n 1
        ;;
    esac
}

if [ "${1:-}" = load ]; then
    load "$2"
    exit
fi
DIR=$(mktemp -d)
trap 'rm -rf "$DIR"' EXIT
QUERIES=
export DIMMER ROUNDS SECONDS_EACH WARM_UP MODEL PORT DIR QUERIES
status=0
for program in ${*:-$ALL}; do
    prepared=0
    prepare "$program" || prepared=$?
    if [ $prepared = 0 ]; then
        "$DIMMER" bench dev auto --metric output --rounds "$ROUNDS" --model "$MODEL" \
            -- "$0" load "$program" || status=1
        echo
    elif [ $prepared != 3 ]; then
        echo "$program: could not be prepared" >&2
        status=1
    fi
done
exit $status
