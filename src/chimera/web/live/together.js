"use strict";
// Slow motion of several runs together: their clocks begin at the same time, and move at the same speed.
class Together {
  constructor(motions) {
    this.motions = motions;
    at("all").hidden = motions.length < 2;
    at("all-slow").onclick = () => this.toggle();
    at("all-start").onclick = () => this.each(motion => motion.go(0));
    at("all-step").onclick = () => this.each(motion => motion.step(1));
    at("all-play").onclick = () => (this.playing ? this.each(motion => motion.pause()) : this.play());
    for (const motion of motions) motion.oncontrols = () => this.controls();
    this.controls();
  }

  get slow() {
    return this.motions.every(motion => motion.slow);
  }
  get playing() {
    return this.motions.some(motion => motion.playing);
  }

  controls() {
    at("all-slow").textContent = this.slow ? "All back to live" : "All in slow motion";
    at("all-play").textContent = this.playing ? "Pause all" : "Play all";
    for (const name of ["all-start", "all-step", "all-play"]) at(name).disabled = !this.slow;
  }

  each(act) {
    return Promise.all(this.motions.map(act));
  }

  async toggle() {
    const slow = !this.slow;
    await this.each(motion => (motion.slow === slow ? undefined : motion.toggle()));
    const slowest = Math.min(...this.motions.map(motion => Number(motion.speed.value)));
    for (const motion of this.motions) motion.speed.value = String(slowest);
  }

  async play() {
    // from the earliest of their times, so that they stay comparable
    const time = Math.min(...this.motions.map(motion => motion.time)),
      speed = this.motions[0].speed.value;
    await this.each(motion => motion.goTo(time));
    for (const motion of this.motions) {
      motion.speed.value = speed;
      motion.play();
    }
  }
}
