#!/bin/sh
# Makes the inputs of the workloads, in the current directory. What a missing command would make is missing.
set -u
seq 1 400000 >numbers.txt
awk 'BEGIN { srand(7); for (i = 0; i < 150000; i++) print int(rand() * 1e9), "word" i % 977, rand() }' >table.txt
cat numbers.txt table.txt >text.txt
head -c 3000000 text.txt >small.txt
head -c 6000000 /dev/zero | openssl enc -aes-128-ctr -K 00 -iv 00 2>/dev/null >random.bin || cp text.txt random.bin
mkdir -p tree && for i in $(seq 1 200); do head -c $((i * 50)) text.txt >"tree/file$i.c"; done
gzip -kf small.txt; xz -kf -1 small.txt; zstd -qkf small.txt 2>/dev/null
tar cf tree.tar tree
video="-f lavfi -i testsrc2=size=320x240:rate=25:duration=2"
# shellcheck disable=SC2086 # several words on purpose
{
    ffmpeg -nostdin -loglevel error -y $video -pix_fmt yuv420p clip.y4m
    ffmpeg -nostdin -loglevel error -y -i clip.y4m -c:v libx264 -preset ultrafast clip.mkv
    ffmpeg -nostdin -loglevel error -y -i clip.y4m -c:v libaom-av1 -cpu-used 8 clip.ivf
    ffmpeg -nostdin -loglevel error -y -i clip.y4m -c:v libvpx-vp9 -deadline realtime -cpu-used 8 clip.webm
    ffmpeg -nostdin -loglevel error -y -f lavfi -i "sine=frequency=440:duration=20" -ac 2 tone.wav
    ffmpeg -nostdin -loglevel error -y -i clip.y4m -frames:v 1 picture.png
    ffmpeg -nostdin -loglevel error -y -i clip.y4m -frames:v 1 picture.ppm
    ffmpeg -nostdin -loglevel error -y -i clip.y4m -frames:v 1 picture.jpg
} </dev/null 2>/dev/null
cat >program.c <<'END'
#include <math.h>
#include <stdio.h>
int main(void) { double s = 0; for (int i = 0; i < 3000000; i++) s += sqrt(i) * sin(i); printf("%.6f\n", s); return 3; }
END
cat >program.cc <<'END'
#include <algorithm>
#include <iostream>
#include <map>
#include <stdexcept>
#include <string>
int main() { std::map<std::string, int> m; for (int i = 0; i < 200000; i++) try { if (i % 3 == 0) throw std::runtime_error("x"); m[std::to_string(i % 997)]++; } catch (std::exception &) { m["caught"]++; } std::cout << m.size() << m["caught"] << "\n"; }
END
cat >hashes.py <<'END'
import hashlib, json, zlib, math, random, struct
random.seed(3)
data = [random.random() for _ in range(200000)]
print(sum(map(math.sqrt, data)), hashlib.sha256(struct.pack("d" * len(data), *data)).hexdigest())
print(zlib.crc32(zlib.compress(json.dumps(data).encode())))
END
cat >arrays.py <<'END'
import numpy as n
r = n.random.default_rng(5)
a, b = r.random((400, 400)), r.random((400, 400), dtype=n.float32)
print((a @ b).sum(), n.linalg.svd(a, compute_uv=False)[:3], n.fft.rfft(a).real.sum(), n.sort(a.ravel())[:3])
print(n.exp(a).sum(), n.sin(b).sum(), (a > 0.5).sum(), n.cumsum(a)[-1], n.linalg.solve(a, a[0])[:3])
END
cat >science.py <<'END'
import numpy as n
from scipy import fft, linalg, optimize, signal, sparse
a = n.arange(90000.0).reshape(300, 300) % 17 + n.eye(300) * 50
print(linalg.lu(a)[2].sum(), fft.dct(a).sum(), signal.fftconvolve(a, a).sum())
print(optimize.minimize(lambda x: ((x - 3) ** 2).sum(), n.zeros(30)).x[:2].round(4), (sparse.csr_matrix(a) @ a).sum())
END
cat >coroutines.py <<'END'
import greenlet, math
import numpy as n
total = 0.0
def work(k):
    global total
    for i in range(300):
        total += float((n.arange(100.0) * k).sum()) + math.sqrt(i)
        greenlet.getcurrent().parent.switch(i)
lets = [greenlet.greenlet(work) for _ in range(20)]
for turn in range(301):
    for k, let in enumerate(lets):
        if not let.dead: let.switch(k) if turn == 0 else let.switch()
print(round(total, 3))
END
cat >threads.py <<'END'
import concurrent.futures, hashlib, subprocess
def work(i): return hashlib.blake2b(bytes(str(i), "ascii") * 5000).hexdigest()
with concurrent.futures.ThreadPoolExecutor(8) as pool: print(hashlib.md5("".join(pool.map(work, range(400))).encode()).hexdigest())
print([subprocess.run(["echo", str(i)], capture_output=True).stdout for i in range(20)])
END
cat >program.js <<'END'
const c = require("crypto"), z = require("zlib");
const a = []; for (let i = 0; i < 100000; i++) a.push({ x: Math.sin(i) * 1.5, s: "k" + (i % 100) });
console.log(JSON.stringify(a).length, c.createHash("sha256").update(JSON.stringify(a)).digest("hex"));
console.log(z.gzipSync(Buffer.from(JSON.stringify(a))).length, [...a].sort((p, q) => p.x - q.x)[5].s);
END
cat >program.pl <<'END'
my %h; for my $i (1 .. 200000) { $h{ $i % 1009 } .= chr(65 + $i % 26) } my $n = 0; $n += length $_ for values %h; print "$n\n"; eval { die "x\n" }; print $@; exit 5;
END
cat >program.rb <<'END'
h = Hash.new(0); 200_000.times { |i| h[(i * 7919) % 1013] += 1 }; puts h.size, h.values.sum; f = Fiber.new { 3.times { |i| Fiber.yield i } }; puts f.resume, f.resume; exit 4
END
cat >program.lua <<'END'
local t = {} for i = 1, 300000 do t[i % 997] = (t[i % 997] or 0) + math.sin(i) end
local c = coroutine.wrap(function() for i = 1, 5 do coroutine.yield(i) end end)
print(#t, c(), c(), pcall(error, "x")) os.exit(6)
END
cat >program.php <<'END'
<?php $a = []; for ($i = 0; $i < 200000; $i++) $a[$i % 1009] = ($a[$i % 1009] ?? 0) + sqrt($i); echo count($a), " ", round(array_sum($a), 3), " ", md5(json_encode($a)), "\n"; exit(2);
END
cat >program.go <<'END'
package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"runtime"
	"sync"
)

func deep(n int) float64 { var b [64]float64; b[n%64] = 1; if n == 0 { runtime.GC(); return 1 }; return deep(n-1) + b[n%64] }
func main() {
	var w sync.WaitGroup; var m sync.Mutex; s := 0.0
	for i := 0; i < 8; i++ { w.Add(1); go func(i int) { defer w.Done(); h := sha256.Sum256(make([]byte, 100000+i)); m.Lock(); s += deep(500) + float64(h[0]); m.Unlock() }(i) }
	w.Wait(); fmt.Println(s); os.Exit(4)
}
END
cat >program.ml <<'END'
let rec build n = if n = 0 then [] else float_of_int n :: build (n - 1)
let () = let t = ref 0.0 in for i = 1 to 200 do t := !t +. List.fold_left (+.) 0.0 (build (1000 + i)); Gc.minor () done;
  (try ignore (List.hd []) with Failure s -> print_endline s); Printf.printf "%f\n" !t; exit 6
END
cat >Program.java <<'END'
import java.util.*; import java.util.stream.*;
public class Program { static int deep(int n) { return n == 0 ? ((Object) null).hashCode() : deep(n - 1) + 1; }
  public static void main(String[] a) throws Exception {
    int n = 0; for (int i = 0; i < 500; i++) try { deep(50); } catch (NullPointerException x) { n += x.getStackTrace().length; }
    System.out.println(n + " " + IntStream.range(0, 500000).mapToDouble(Math::sqrt).sum());
    byte[] b = new byte[1000000]; System.out.println(Arrays.hashCode(java.security.MessageDigest.getInstance("SHA-256").digest(b))); System.gc(); System.exit(3); } }
END
cat >query.sql <<'END'
create table t (a integer, b text, c real);
with recursive n(i) as (select 1 union all select i + 1 from n where i < 100000) insert into t select i, 'k' || (i % 997), i * 0.5 from n;
create index i on t (b);
select b, count(*), sum(c) from t group by b order by 3 desc limit 5;
select count(*) from t x join t y on x.a = y.a + 1 where x.b < y.b;
END
cat >data.json <<'END'
[]
END
awk 'BEGIN { printf "["; for (i = 0; i < 30000; i++) printf "%s{\"a\":%d,\"b\":\"x%d\"}", i ? "," : "", i, i % 91; print "]" }' >data.json
awk 'BEGIN { print "<r>"; for (i = 0; i < 30000; i++) print "<e i=\"" i "\">x" i % 91 "</e>"; print "</r>" }' >data.xml
cc -O2 -o program program.c -lm; c++ -O1 -o program-cc program.cc
go build -o program-go program.go 2>/dev/null; ocamlfind ocamlopt -package unix program.ml -o program-ml 2>/dev/null || ocamlopt -o program-ml program.ml 2>/dev/null
javac Program.java 2>/dev/null
git init -q repository 2>/dev/null && cp -r tree repository && git -C repository add . && git -C repository -c user.name=x -c user.email=x@example.org commit -qm x
# Hashes in threads, once a filter of system calls ends the process for some.
cat >filter.py <<'END'
import concurrent.futures, ctypes, hashlib, os, struct, sys
# statfs, fstatfs, pwrite64, rename; getpid, access, which programs make at their start
calls = [137, 138, 18, 82] + ([] if sys.argv[1:] else [39, 21])
code = [struct.pack("HBBI", 0x20, 0, 0, 0)]
for call in calls: code += [struct.pack("HBBI", 0x15, 0, 1, call), struct.pack("HBBI", 0x06, 0, 0, 0x80000000)]
code.append(struct.pack("HBBI", 0x06, 0, 0, 0x7fff0000))
text = ctypes.create_string_buffer(b"".join(code))
class Program(ctypes.Structure): _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]
c = ctypes.CDLL(None)
c.prctl(38, 1, 0, 0, 0)
if c.prctl(22, 2, ctypes.byref(Program(len(code), ctypes.addressof(text)))): sys.exit(77)
if sys.argv[1:]: os.execvp(sys.argv[1], sys.argv[1:])
def work(i): return hashlib.blake2b(bytes(str(i), "ascii") * 5000).hexdigest()
with concurrent.futures.ThreadPoolExecutor(8) as pool: print(hashlib.md5("".join(pool.map(work, range(400))).encode()).hexdigest())
END
exit 0
