//! scratch
use dimmer_probe::{kernel, lab::*, mode::Mode, session, silicon::*};
use dimmer_processor::units::CpuId;
struct O;
impl Observer for O { fn begins(&mut self, w:&str, _:f64){ eprintln!("{w}"); } fn wants_stop(&self)->bool{false} }
fn main(){
 let f=["avx2","fma","avx512f","avx512dq","avx512bw","avx512vl","avx512ifma"].map(String::from).to_vec();
 let mut s=Silicon::new(SiliconConfig{cpus:vec![CpuId::new(1),CpuId::new(0)],topology:Default::default(),features:f,huge_pages:false}).unwrap();
 let a:Vec<String>=std::env::args().collect();
 let mode:Mode=a[1].parse().unwrap();
 let kernels=a[2].split(',').map(|k|kernel::find(k).unwrap()).collect();
 let plan=session::Plan{modes:vec![mode],kernels,cpu:CpuId::new(1),settings:Settings{effort:if a.len()>3{Effort::Full}else{Effort::Quick},repetitions:1000,burst:800,threads:1,load:None},only_where_effect:false};
 let t=std::time::Instant::now();
 let r=session::run(&mut s,&plan,&mut O).unwrap();
 println!("{:?} {:.2}s", r.instrument, t.elapsed().as_secs_f64());
 for o in r.outcomes { let mut o=o; 
  use dimmer_probe::outcome::Detail::*;
  println!("{} {} reps {} dist {} stolen {} pre {} effect {} bound {:.1} hor {:.0}", o.mode,o.kernel,o.repetitions,o.disturbed_windows,o.stolen_windows,o.preemptions,o.effect,o.bound_ns,o.horizon_ns);
  match &mut o.detail { Episode(e)=>{ println!("  burst {:?}\n  extra {:?}\n  clock {:?}\n  issue {:?}\n  delay {:?}\n  stall {:?}\n  thr {:?}", e.burst_ns.estimate,e.extra_ns.estimate,e.clock_ratio_after.estimate,e.issue_ratio_after.estimate,e.release_delay_ns.as_ref().map(|q|q.estimate),e.release_stall_ns.as_ref().map(|q|q.estimate),e.throttling.as_ref().map(|t|(t.throttled_ns.estimate,t.throttle_factor)));
    for n in &e.neighbours { println!("  nb {:?} {:?} {} {:?}", n.cpu,n.relation,n.effect,n.extra_ns.estimate);} 
    for p in &e.curve { print!(" {:.1}us:{:.4}/{:.2}", p.at_ns/1e3,p.clock_ratio.median,p.stall_share);} println!(); }
   Downclock(d)=>{ println!("  settle {:?} ratio {:?} ipc {:?} stall {:?} thr {:?} steps {:?}", d.settle_ns.as_ref().map(|q|q.estimate), d.clock_ratio.estimate, d.instructions_per_cycle.estimate, d.stall_ns.as_ref().map(|q|q.estimate), d.throttling.as_ref().map(|t|(t.throttled_ns.estimate,t.throttle_factor)), d.steps);
    for p in &d.curve { print!(" {:.1}us:{:.4}/{:.2}", p.at_ns/1e3,p.clock_ratio.median,p.stall_share);} println!(); for p in &d.throughput {print!(" {:.1}:{:.3}",p.0/1e3,p.1);} println!();}
   Throttle(t)=>println!("  {:?} {:?} {:?}\n {:?}", t.pre_throttle_ns.as_ref().map(|q|q.estimate),t.pre_throttle_instructions.as_ref().map(|q|q.estimate),t.throttling.as_ref().map(|t|(t.throttled_ns.estimate,t.throttle_factor)), &t.throughput[..20]),
   Recurrence(r)=>{ println!(" {:?} {}", r.regime_change_us, r.regime); for g in &r.gaps { println!("   {:.1}us slow {:.3}% [{:.3},{:.3}] stalls {:.2} burst {:.0} clock {:.4}", g.gap_us,g.slowdown_pct.median,g.slowdown_pct.ci95.0,g.slowdown_pct.ci95.1,g.stall_share,g.burst_ns.median,g.clock_ratio);} }
   x=>println!("{x:?}") }
 }
}
